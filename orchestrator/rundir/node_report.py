"""What the monitor of a node says of its ranks: attempts/N/nodes/K.json. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.rundir.beat import Beat, number, numbers_by_name, whole, word


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a GPU says of itself.

    Attributes:
        sm_mhz: Clock of its multiprocessors.
        celsius: Its temperature.
        slowed: Why it runs slower than it could, where that is a fault: "hardware slowdown",
            "thermal", "power brake". A power cap in software is everyday life and none.
    """

    sm_mhz: float | None
    celsius: float | None
    slowed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """A rank as its node sees it; see `orchestrator.rundir.beat.Beat` for what is not said here.

    Attributes:
        alive: Whether its process is there.
        stopped: Whether its process is stopped (state T), as by SIGSTOP.
        idle_s: Seconds since it made progress, by its node's own clock.
        stalled: Whether that is more than its limit.
    """

    rank: int
    world_size: int
    pid: int
    alive: bool
    stopped: bool
    step: int
    phase: str
    waiting: bool
    idle_s: float
    limit_s: float | None
    stalled: bool
    step_s: float | None = None
    wait_s: float | None = None
    collectives: Mapping[str, int] = field(default_factory=dict)
    gpu: Gpu | None = None

    @classmethod
    def of(
        cls, beat: Beat, *, idle_s: float, alive: bool, stopped: bool, gpu: Gpu | None
    ) -> "RankReport":
        """Return the report of a rank whose last word is ``beat``."""
        return cls(
            rank=beat.rank,
            world_size=beat.world_size,
            pid=beat.pid,
            alive=alive,
            stopped=stopped,
            step=beat.step,
            phase=beat.phase,
            waiting=beat.waiting,
            idle_s=round(idle_s, 3),
            limit_s=beat.limit_s,
            stalled=beat.limit_s is not None and idle_s > beat.limit_s,
            step_s=beat.step_s,
            wait_s=beat.wait_s,
            collectives=beat.collectives,
            gpu=gpu,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """The ranks of a node. ``at`` is the time of writing, by the node's clock."""

    node: str
    at: float
    ranks: tuple[RankReport, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON's types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "NodeReport | None":
        """Return the report in ``data``, None where there is none; broken ranks are left out."""
        at, ranks = number(data.get("at")), data.get("ranks")
        if at is None or not isinstance(ranks, list):
            return None
        found = [_rank(item) for item in ranks if isinstance(item, dict)]
        known = tuple(rank for rank in found if rank is not None)
        return cls(node=word(data.get("node")) or "?", at=at, ranks=known)


def _rank(data: Mapping[str, Any]) -> RankReport | None:
    counts = {name: whole(data.get(name)) for name in ("rank", "world_size", "pid", "step")}
    idle_s = number(data.get("idle_s"))
    if idle_s is None or any(value is None or value < 0 for value in counts.values()):
        return None
    limit_s = number(data.get("limit_s"))
    return RankReport(
        **{name: value or 0 for name, value in counts.items()},
        alive=data.get("alive") is not False,
        stopped=data.get("stopped") is True,
        phase=word(data.get("phase")),
        waiting=data.get("waiting") is True,
        idle_s=idle_s,
        limit_s=limit_s,
        stalled=limit_s is not None and idle_s > limit_s,
        step_s=number(data.get("step_s")),
        wait_s=number(data.get("wait_s")),
        collectives=numbers_by_name(data.get("collectives")),
        gpu=_gpu(data.get("gpu")),
    )


def _gpu(data: object) -> Gpu | None:
    if not isinstance(data, dict):
        return None
    slowed = data.get("slowed")
    reasons = tuple(word(item) for item in slowed) if isinstance(slowed, list) else ()
    return Gpu(
        sm_mhz=number(data.get("sm_mhz")), celsius=number(data.get("celsius")), slowed=reasons
    )
