"""Who is slow: a node, a pair of nodes, or all of them. Pure.

A slow node drags down all pairs that it is part of: two of three pairs, if there are three nodes.
So the median of the pairs tells nothing. Each node is taken at its best pair instead, which is as
good as the node unless all its partners are slow, and the median over the nodes is the reference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from orchestrator.bandwidth.record import Measurement, Pair, Record

# With one partner alone, nobody can say which of the two is slow.
_PARTNERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What follows from a record.

    Attributes:
        largest: The all-reduce of the largest size over all ranks; None where there is none.
        expectation: Its bus bandwidth as a part of the promised one; None where none is.
        below: Whether that is clearly less than was promised.
        reference_gbs: What the usual node reaches with its best partner; None without pairs.
        nodes: Slow nodes, with the best that each of them reaches, in GB/s.
        pairs: Slow pairs of nodes that are not slow by themselves.
    """

    largest: Measurement | None = None
    expectation: float | None = None
    below: bool = False
    reference_gbs: float | None = None
    nodes: Mapping[str, float]
    pairs: tuple[Pair, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is slow."""
        return not (self.nodes or self.pairs or self.below)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return {
            "ok": self.ok,
            "all_reduce_bus_gbs": self.largest.bus_gbs if self.largest else None,
            "expectation": self.expectation,
            "below_expectation": self.below,
            "reference_gbs": self.reference_gbs,
            "slow_nodes": [{"node": n, "best_bus_gbs": best} for n, best in self.nodes.items()],
            "slow_pairs": [{"a": p.a, "b": p.b, "bus_gbs": p.bus_gbs} for p in self.pairs],
        }


def find(record: Record) -> Finding:
    """Return what follows from ``record``."""
    largest = max(
        (m for m in record.measurements if m.collective == "all_reduce"),
        key=lambda m: m.size,
        default=None,
    )
    share = largest.bus_gbs / record.expected_gbs if largest and record.expected_gbs else None
    best = _best(record)
    reference = median_high(best.values()) if best else None
    slow = {node: gbs for node, gbs in best.items() if _is_slow(gbs, reference, record)}
    named = {node: gbs for node, gbs in slow.items() if _partners(node, record) >= _PARTNERS}
    return Finding(
        largest=largest,
        expectation=share,
        below=share is not None and share < record.ratio,
        reference_gbs=reference,
        nodes=named,
        pairs=tuple(
            pair
            for pair in record.pairs
            if _is_slow(pair.bus_gbs, reference, record) and not {pair.a, pair.b} & named.keys()
        ),
    )


def _best(record: Record) -> dict[str, float]:
    """Return the bus bandwidth of each node's best pair, in the order of the nodes."""
    found: dict[str, float] = {}
    for pair in record.pairs:
        for node in (pair.a, pair.b):
            found[node] = max(pair.bus_gbs, found.get(node, 0.0))
    return dict(sorted(found.items(), key=lambda item: _place(item[0], record)))


def _place(node: str, record: Record) -> tuple[int, str]:
    known = record.nodes.index(node) if node in record.nodes else len(record.nodes)
    return known, node


def _is_slow(gbs: float, reference: float | None, record: Record) -> bool:
    """Return whether ``gbs`` is clearly less than the others', and no more than was promised.

    Where a profile promises less than this, a node that keeps the promise is not slow.
    """
    kept = record.expected_gbs is not None and gbs >= record.expected_gbs
    return reference is not None and gbs < record.ratio * reference and not kept


def _partners(node: str, record: Record) -> int:
    return len({frozenset((p.a, p.b)) for p in record.pairs if node in (p.a, p.b)})


def why_slow(node: str, finding: Finding, record: Record) -> str:
    """Return why ``node`` is named, as one sentence without its name."""
    best, reference = finding.nodes[node], finding.reference_gbs or 0.0
    return (
        f"an all-reduce of {size_text(record.pair_size)} with any of {_partners(node, record)}"
        f" other nodes reaches {gbs_text(best)} GB/s at most, where the usual node reaches"
        f" {gbs_text(reference)} GB/s (bus bandwidth)"
    )


def size_text(size: int) -> str:
    """Return a number of bytes for people.

    >>> size_text(1 << 30), size_text(64 << 20), size_text(1000)
    ('1 GiB', '64 MiB', '1000 B')
    """
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def gbs_text(gbs: float) -> str:
    """Return a bandwidth in GB/s with three digits, more or less.

    >>> gbs_text(361.4), gbs_text(9.84), gbs_text(0.0117)
    ('361', '9.84', '0.0117')
    """
    return f"{gbs:.0f}" if gbs >= 100 else f"{gbs:.3g}"
