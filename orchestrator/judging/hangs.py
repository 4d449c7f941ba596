"""Whether an attempt hangs, and which rank the others wait for. Pure.

Ranks of one job wait for one another all the time, so one that stands still makes all stand still.
A rank that waits in a call of the runtime says so; the attempt hangs when every other one is past
its limit. That way nobody's long, honest work (a save, an evaluation on rank 0, files being
deleted) is taken for a hang, however long the others wait for it.

What is not known is not held against the attempt: the ranks of a node whose report is old count
with what they said last, and where ranks were never heard of, the others must be twice as late.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.judging.stacks import Place, place
from orchestrator.rundir.attempt import Hang
from orchestrator.rundir.beat import ENDING, RESUMING, SAVING, STARTING, TRAINING
from orchestrator.rundir.node_report import NodeReport, RankReport

# Monitors write every 15 s; clocks of nodes may differ, and NFS shows a file up to 60 s late.
FRESH_S = 150.0
_UNHEARD_FACTOR = 2.0
_STOOD = {
    TRAINING: "no rank has done a step for",
    STARTING: "the start has not got on for",
    RESUMING: "the resume has not ended for",
    SAVING: "the save has not ended for",
    ENDING: "the end has not come for",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rank, its node, and how old the news of it is."""

    rank: RankReport
    node: str
    fresh: bool
    age_s: float

    @property
    def idle_s(self) -> float:
        """Seconds without progress; an old report's rank is taken to have made none since."""
        return self.rank.idle_s + (0.0 if self.fresh else self.age_s)

    @property
    def late(self) -> bool:
        """Whether it is past its limit."""
        return self.rank.limit_s is not None and self.idle_s > self.rank.limit_s

    @property
    def still(self) -> bool:
        """Whether nothing can come of it by itself: late, waiting for others, or not running."""
        return self.late or self.rank.waiting or self.rank.stopped or not self.rank.alive


@dataclass(frozen=True, slots=True)
class Stuck:
    """An attempt that hangs, before it is known why."""

    members: tuple[Member, ...]

    @property
    def late(self) -> tuple[Member, ...]:
        """Those past their limit of which there is fresh news; work before waiting."""
        late = [m for m in self.members if m.fresh and m.late]
        return tuple([m for m in late if not m.rank.waiting] or late)

    @property
    def unheard(self) -> int:
        """How many ranks were never heard of."""
        return max(0, max(m.rank.world_size for m in self.members) - len(self.members))


def members(reports: Iterable[NodeReport], *, now: float) -> tuple[Member, ...]:
    """Return the ranks of an attempt that have not ended, in order."""
    found = [
        Member(rank=rank, node=report.node, fresh=is_fresh(report, now), age_s=now - report.at)
        for report in reports
        for rank in report.ranks
        if rank.alive or rank.phase != ENDING
    ]
    return tuple(sorted(found, key=lambda member: member.rank.rank))


def is_fresh(report: NodeReport, now: float) -> bool:
    """Return whether a node's report is new enough to rely on, at ``now``."""
    return abs(now - report.at) <= FRESH_S


def stuck(reports: Iterable[NodeReport], *, now: float) -> Stuck | None:
    """Return the attempt as one that hangs, None where it does not, or it is not known.

    Args:
        reports: What the monitors of its nodes wrote.
        now: In seconds since 1970, by the reader's clock.
    """
    known = members(reports, now=now)
    if not known or not all(member.still for member in known):
        return None
    found = Stuck(known)
    if not found.late:
        return None
    if found.unheard and max(_times_late(m) for m in found.late) < _UNHEARD_FACTOR:
        return None
    return found


def _times_late(member: Member) -> float:
    return member.idle_s / (member.rank.limit_s or float("inf"))


def explain(found: Stuck, *, stacks: Mapping[int, str]) -> Hang:
    """Return what is to be said of an attempt that hangs: for how long, and who did not arrive.

    Args:
        found: What `stuck` returned.
        stacks: What each rank's faulthandler wrote, by rank; empty or missing where it did not.
    """
    idle_s = min(member.idle_s for member in found.late)
    limit_s = min(member.rank.limit_s or 0.0 for member in found.late)
    places = {rank: at for rank, text in stacks.items() if (at := place(text))}
    ranks, what = _culprit(found, places)
    guilty = [member for member in found.members if member.rank.rank in ranks]
    phase = (guilty or found.late)[0].rank.phase
    stood = _STOOD.get(phase, f"{phase or 'the work'} has not ended for")
    return Hang(
        why=f"{stood} {idle_s:.0f} s (limit {limit_s:.0f} s): {what}",
        idle_s=idle_s,
        over_s=min(m.idle_s - (m.rank.limit_s or 0.0) for m in found.late),
        ranks=ranks,
        nodes=tuple(dict.fromkeys(member.node for member in guilty)),
    )


def _culprit(found: Stuck, places: Mapping[int, Place]) -> tuple[tuple[int, ...], str]:
    """Return the ranks that the others wait for, and how that is known, in words."""
    known = found.members
    if dead := [m for m in known if m.rank.stopped or not m.rank.alive]:
        fate = "is stopped (state T)" if dead[0].rank.stopped else "is gone"
        return _ranks(dead), f"{name(dead)} did not arrive: its process {fate}"
    if old := _minority([m for m in known if not m.fresh], known):
        age = max(member.age_s for member in old)
        return _ranks(old), f"{name(old)} did not arrive: its node has said nothing for {age:.0f} s"
    if behind := _behind(known, places):
        return _ranks(behind), f"{name(behind)} did not arrive{_where(behind, known, places)}"
    if found.unheard:
        return (), f"{found.unheard} of {known[0].rank.world_size} ranks were never heard of"
    return (), f"which rank did not arrive is not known{_all_stand(places)}"


def _behind(known: Sequence[Member], places: Mapping[int, Place]) -> list[Member]:
    """Return the ranks that are behind the others, by the first evidence that tells some apart."""
    standing = {m.rank.rank: at for m in known if (at := places.get(m.rank.rank))}
    suspects = (
        _lowest_steps(known),
        [m for m in known if not m.rank.waiting],
        _fewest_collectives(known),
        _at_work(known, standing),
        _elsewhere(known, standing),
        [m for m in known if standing and m.rank.rank not in standing],
    )
    return next((few for group in suspects if (few := _minority(group, known))), [])


def _at_work(known: Sequence[Member], standing: Mapping[int, Place]) -> list[Member]:
    """Return the ranks whose stacks wait for nobody, where those of others do."""
    if not any(at.meets for at in standing.values()):
        return []
    return [m for m in known if m.rank.rank in standing and not standing[m.rank.rank].meets]


def _elsewhere(known: Sequence[Member], standing: Mapping[int, Place]) -> list[Member]:
    """Return the ranks that stand elsewhere than most of them do."""
    for key, count in Counter(at.key for at in standing.values()).most_common(1):
        if count > len(standing) / 2:
            return [
                m for m in known if standing.get(m.rank.rank) and standing[m.rank.rank].key != key
            ]
    return []


def _minority(group: Sequence[Member], known: Sequence[Member]) -> list[Member]:
    """Return ``group`` if it tells some ranks apart: at most half of them."""
    return list(group) if 0 < len(group) <= len(known) / 2 else []


def _lowest_steps(known: Sequence[Member]) -> list[Member]:
    lowest = min(member.rank.step for member in known)
    return [member for member in known if member.rank.step == lowest]


def _fewest_collectives(known: Sequence[Member]) -> list[Member]:
    """Return the ranks that enqueued fewer collectives than others in a group that all are in."""
    shared = set.intersection(*(set(member.rank.collectives) for member in known))
    for group in sorted(shared):
        most = max(member.rank.collectives[group] for member in known)
        fewer = [member for member in known if member.rank.collectives[group] < most]
        if few := _minority(fewer, known):
            return few
    return []


def _where(guilty: Sequence[Member], known: Sequence[Member], places: Mapping[int, Place]) -> str:
    own = places.get(guilty[0].rank.rank)
    others = [places[r] for m in known if (r := m.rank.rank) in places and m not in guilty]
    stands = f": it stands in {own}" if own else ": it left no stack" if others else _phases(guilty)
    if not others:
        return stands
    common, _ = Counter(at.through or str(at) for at in others).most_common(1)[0]
    return f"{stands}, the others in {common}"


def _phases(guilty: Sequence[Member]) -> str:
    rank = guilty[0].rank
    return f": it is {rank.phase}, after step {rank.step}" if rank.phase else ""


def _all_stand(places: Mapping[int, Place]) -> str:
    if not places:
        return ""
    common, count = Counter(str(at) for at in places.values()).most_common(1)[0]
    return f"; {count} of {len(places)} stand in {common}"


def _ranks(group: Iterable[Member]) -> tuple[int, ...]:
    return tuple(member.rank.rank for member in group)


def name(group: Sequence[Member]) -> str:
    """Return ranks and their nodes in words: "rank 3 on n2", "ranks 8-11, 14 on n2"."""
    ranks = _ranks(group)
    nodes = list(dict.fromkeys(member.node for member in group))
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    on = f" on {', '.join(nodes[:3])}{more}"
    return f"rank{'s' if len(ranks) > 1 else ''} {_numbers(ranks)}{on}"


def _numbers(ranks: Sequence[int]) -> str:
    """Return whole numbers in order as ranges.

    >>> _numbers([1, 2, 3, 7])
    '1-3, 7'
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return ", ".join(words[:6]) + (", ..." if len(words) > 6 else "")
