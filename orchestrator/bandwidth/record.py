"""What was measured, as attempts/N/bandwidth.json holds it. Pure.

Files of other versions, torn or of any content must not break whoever reads them: what is missing
or of another type is left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

# What reaches less than so much of what the others reach is slow: half of the adapters of a node
# gone is far below, the noise of a fabric that is shared with other jobs is above.
RATIO = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One collective over all ranks.

    Attributes:
        collective: all_reduce, all_gather or reduce_scatter.
        size: Bytes of the whole array (see `formulas`).
        seconds: The slowest rank's median time of one call.
    """

    collective: str
    size: int
    seconds: float
    algorithm_gbs: float
    bus_gbs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """An all-reduce over the ranks of two nodes; ``a`` and ``b`` are their names."""

    a: str
    b: str
    bus_gbs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one sweep measured.

    Attributes:
        at: Seconds since 1970.
        backend: nccl or gloo.
        device: The GPU's name, or "cpu".
        torch, nccl: Versions; "" where there is none.
        nodes: Their names, in the order of their ranks.
        ranks: Of all nodes together.
        pair_size: Bytes of the pairs' all-reduce; 0 where no pairs were measured.
        rounds, rounds_total: Rounds of the tournament that were done, and that there are.
        expected_gbs: Bus bandwidth of a large all-reduce that the site profile promises.
        ratio: What is below so much of the others' bandwidth is slow.
        complete: Whether the sweep came to its end.
        notes: What was left out, and why.
    """

    at: float = 0.0
    backend: str = ""
    device: str = ""
    torch: str = ""
    nccl: str = ""
    nodes: tuple[str, ...] = ()
    ranks: int = 0
    measurements: tuple[Measurement, ...] = ()
    pairs: tuple[Pair, ...] = ()
    pair_size: int = 0
    rounds: int = 0
    rounds_total: int = 0
    expected_gbs: float | None = None
    ratio: float = RATIO
    complete: bool = False
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Record":
        """Return what ``data`` says, as far as it can be used."""
        return cls(
            at=_number(data.get("at")) or 0.0,
            backend=_text(data.get("backend")),
            device=_text(data.get("device")),
            torch=_text(data.get("torch")),
            nccl=_text(data.get("nccl")),
            nodes=_texts(data.get("nodes")),
            ranks=_whole(data.get("ranks")),
            measurements=tuple(_measurements(data.get("measurements"))),
            pairs=tuple(_pairs(data.get("pairs"))),
            pair_size=_whole(data.get("pair_size")),
            rounds=_whole(data.get("rounds")),
            rounds_total=_whole(data.get("rounds_total")),
            expected_gbs=_number(data.get("expected_gbs")),
            ratio=_number(data.get("ratio")) or RATIO,
            complete=data.get("complete") is True,
            notes=_texts(data.get("notes")),
        )


def _measurements(value: object) -> Iterator[Measurement]:
    for item in _objects(value):
        seconds, algorithm, bus = (
            _number(item.get(key)) for key in ("seconds", "algorithm_gbs", "bus_gbs")
        )
        if seconds is not None and algorithm is not None and bus is not None:
            yield Measurement(
                collective=_text(item.get("collective")),
                size=_whole(item.get("size")),
                seconds=seconds,
                algorithm_gbs=algorithm,
                bus_gbs=bus,
            )


def _pairs(value: object) -> Iterator[Pair]:
    for item in _objects(value):
        a, b, bus = _text(item.get("a")), _text(item.get("b")), _number(item.get("bus_gbs"))
        if a and b and bus is not None:
            yield Pair(a=a, b=b, bus_gbs=bus)


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    """Return a text that can be printed; what a file holds may be anything."""
    return value if isinstance(value, str) and value.isprintable() else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(filter(None, map(_text, value))) if isinstance(value, list) else ()


def _number(value: object) -> float | None:
    fine = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if fine and 0 <= value < 1e15 else None  # type: ignore[operator, arg-type]


def _whole(value: object) -> int:
    return int(_number(value) or 0)
