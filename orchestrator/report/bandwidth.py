"""What a bandwidth sweep measured, as text. Pure."""

from collections.abc import Iterator

from orchestrator.bandwidth.finding import Finding, find, gbs_text, size_text, why_slow
from orchestrator.bandwidth.record import Measurement, Record
from orchestrator.report.columns import columns

# How many slow pairs are named; all are in --json.
_PAIRS = 5


def table(record: Record) -> str:
    """Return all there is to say about a sweep: figures, expectation, pairs, who is slow."""
    finding = find(record)
    rows = [("SIZE", "COLLECTIVE", "TIME", "ALGBW GB/s", "BUSBW GB/s"), *_rows(record)]
    lines = [_header(record), "", columns(rows), "", *_verdict(record, finding)]
    return "\n".join([*lines, *(f"note: {text}" for text in record.notes)])


def lines(record: Record) -> list[str]:
    """Return what a run's status says of a sweep: a line, and one for each that is slow."""
    finding = find(record)
    return [f"bandwidth: {text}" for text in (*_largest(record, finding), *_slow(record, finding))]


def _header(record: Record) -> str:
    nccl = f", NCCL {record.nccl}" if record.nccl else f", {record.backend}"
    nodes = f"{len(record.nodes)} node{'' if len(record.nodes) == 1 else 's'}"
    return f"{record.ranks} ranks on {nodes}: {record.device}, torch {record.torch}{nccl}"


def _rows(record: Record) -> Iterator[tuple[str, ...]]:
    for item in record.measurements:
        yield (
            size_text(item.size),
            item.collective,
            _time_text(item.seconds),
            gbs_text(item.algorithm_gbs),
            gbs_text(item.bus_gbs),
        )


def _time_text(seconds: float) -> str:
    """Return a time for people.

    >>> _time_text(0.0000314), _time_text(0.0123), _time_text(2.5)
    ('31.4 us', '12.3 ms', '2.5 s')
    """
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _verdict(record: Record, finding: Finding) -> Iterator[str]:
    yield from _largest(record, finding)
    yield from _pairs(record, finding)
    slow = _slow(record, finding)
    yield from slow
    if not slow and len(record.pairs) > 1:
        yield "no node and no pair of nodes is slow"
    if not record.complete:
        yield "the sweep did not come to its end"


def _largest(record: Record, finding: Finding) -> Iterator[str]:
    if finding.largest is None:
        return
    yield f"{_said(finding.largest)}{_against(record, finding)}"


def _said(item: Measurement) -> str:
    gbs = gbs_text(item.bus_gbs)
    return f"all-reduce of {size_text(item.size)} over all ranks: {gbs} GB/s bus bandwidth"


def _against(record: Record, finding: Finding) -> str:
    """Return how the figure compares with what was promised."""
    if finding.expectation is None or record.expected_gbs is None:
        return ""
    promised = f"{gbs_text(record.expected_gbs)} GB/s that the site profile promises"
    if finding.below:
        return f", clearly below the {promised} ({finding.expectation:.0%})"
    return f", {finding.expectation:.0%} of the {promised}"


def _pairs(record: Record, finding: Finding) -> Iterator[str]:
    if len(record.pairs) < 2:
        return
    figures = [pair.bus_gbs for pair in record.pairs]
    yield (
        f"pairs of nodes, all-reduce of {size_text(record.pair_size)}: {len(figures)} pairs,"
        f" {gbs_text(min(figures))} to {gbs_text(max(figures))} GB/s; the usual node's best:"
        f" {gbs_text(finding.reference_gbs or 0.0)} GB/s"
    )


def _slow(record: Record, finding: Finding) -> list[str]:
    found = [f"slow node {node}: {why_slow(node, finding, record)}" for node in finding.nodes]
    for pair in finding.pairs[:_PAIRS]:
        found.append(f"slow pair {pair.a} - {pair.b}: {gbs_text(pair.bus_gbs)} GB/s")
    if len(finding.pairs) > _PAIRS:
        found.append(f"{len(finding.pairs) - _PAIRS} more slow pairs")
    return found
