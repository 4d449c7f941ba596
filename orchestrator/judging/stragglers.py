"""Which rank the others wait for at each step, although it does arrive. Pure.

At the vote after a step the slowest rank waits least. Where the collectives inside a step have
made all ranks equally late by then, the vote tells nothing; a GPU that says of itself that it is
slowed down, and runs at a lower clock than the others, is named all the same.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from orchestrator.judging.hangs import Member, members, name
from orchestrator.rundir.attempt import Straggler
from orchestrator.rundir.beat import TRAINING
from orchestrator.rundir.node_report import Gpu, NodeReport

# The others' wait, as a part of a step: below it is not worth a line.
_SHARE = 0.1
_LEAST_S = 0.05
_CLOCK = 0.9


def straggler(reports: Iterable[NodeReport], *, now: float) -> Straggler | None:
    """Return the rank that slows the others down, None where there is none or it is not known."""
    known = members(reports, now=now)
    if len(known) < 2 or not all(m.fresh and m.rank.phase == TRAINING for m in known):
        return None
    return _by_waiting(known) or _by_clock(known)


def _by_waiting(known: Sequence[Member]) -> Straggler | None:
    waits = {m.rank.rank: m.rank.wait_s for m in known if m.rank.wait_s is not None}
    steps = [m.rank.step_s for m in known if m.rank.step_s]
    if len(waits) < len(known) or not steps:
        return None
    slow = min(known, key=lambda member: waits[member.rank.rank])
    least = waits.pop(slow.rank.rank)
    gap = median(waits.values()) - least
    step_s = median(steps)
    if gap < _LEAST_S or gap < _SHARE * step_s:
        return None
    share = min(gap / step_s, 1.0)
    return Straggler(
        rank=slow.rank.rank,
        node=slow.node,
        share=share,
        why=f"{name([slow])} is the slowest: the others wait {gap:.2f} s of each step of"
        f" {step_s:.2f} s for it ({share:.0%}){_clock(slow, known)}",
    )


def _by_clock(known: Sequence[Member]) -> Straggler | None:
    for member in known:
        gpu, usual = member.rank.gpu, _usual_clock(member, known)
        if gpu is None or not gpu.slowed or gpu.sm_mhz is None or usual is None:
            continue
        if gpu.sm_mhz < _CLOCK * usual:
            share = 1 - gpu.sm_mhz / usual
            why = f"{name([member])} runs on a slow GPU{_clock(member, known)}"
            return Straggler(rank=member.rank.rank, node=member.node, share=share, why=why)
    return None


def _usual_clock(member: Member, known: Sequence[Member]) -> float | None:
    clocks = [m.rank.gpu.sm_mhz for m in known if m is not member and m.rank.gpu]
    told = [clock for clock in clocks if clock is not None]
    return median(told) if told else None


def _clock(member: Member, known: Sequence[Member]) -> str:
    """Return what the GPU of a slow rank says, "" where it says nothing."""
    gpu: Gpu | None = member.rank.gpu
    if gpu is None or gpu.sm_mhz is None:
        return ""
    usual = _usual_clock(member, known)
    others = f", the others at {usual:.0f} MHz" if usual else ""
    warm = f", {gpu.celsius:.0f} C" if gpu.celsius is not None else ""
    slowed = f", slowed: {', '.join(gpu.slowed)}" if gpu.slowed else ""
    return f"; its GPU at {gpu.sm_mhz:.0f} MHz{others}{warm}{slowed}"
