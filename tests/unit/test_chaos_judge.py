"""The judge finds what it is there to find: each test spoils one thing in a run that is fine."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.chaos import curve
from tests.chaos.judge import Evidence, Span, problems, steps_lost
from tests.chaos.ledger import Line
from tests.chaos.schedule import Fault
from tests.chaos.strike import Strike

GOAL = 12
WORLD_SIZE = 4
LOSSES = curve.losses(GOAL, world_size=WORLD_SIZE)


def step(number: int, *, attempt: int, rank: int) -> Line:
    taken = curve.samples(number, rank=rank, world_size=WORLD_SIZE)
    line = {"kind": "step", "attempt": attempt, "step": number}
    return {**line, "loss": LOSSES[number - 1], "samples": taken}


def attempt(number: int, first: int, last: int, *, rank: int, saved: bool) -> list[Line]:
    lines: list[Line] = [{"kind": "resumed", "attempt": number, "step": first - 1}]
    lines += [step(n, attempt=number, rank=rank) for n in range(first, last + 1)]
    done = {"attempt": number, "step": last}
    return [*lines, {"kind": "saving", **done}, *([{"kind": "saved", **done}] if saved else [])]


def two_attempts(rank: int) -> list[Line]:
    """Preempted after step 5, with a save; then to the end."""
    first = attempt(1, 1, 5, rank=rank, saved=True)
    return [*first, *attempt(2, 6, GOAL, rank=rank, saved=True)]


def strike(kind: str, **changes: Any) -> Strike:
    fault = Fault(
        number=1, kind=kind, run=0, moment="training", steps=3, way="", pick=0, seconds=0.0
    )
    return Strike(fault=fault, at=100.0, until=110.0, attempts={0: 1}, **changes)


def evidence(**changes: Any) -> Evidence:
    fine = Evidence(
        number=0,
        goal=GOAL,
        finished=GOAL,
        ranks=[two_attempts(rank) for rank in range(WORLD_SIZE)],
        status={"state": "finished", "next": "the last step is done", "quarantined": []},
        spans=[Span("1", "REQUEUED", 50, 112), Span("1", "COMPLETED", 112, 150)],
        strikes=[strike("signal")],
    )
    return dataclasses.replace(fine, **changes)


def spoilt(rank: int, lines: list[Line]) -> Evidence:
    ranks = [two_attempts(number) for number in range(WORLD_SIZE)]
    ranks[rank] = lines
    return evidence(ranks=ranks)


def test_a_run_that_is_fine() -> None:
    assert problems(evidence()) == []


def test_not_finished() -> None:
    assert "end mark says None" in problems(evidence(finished=None))[0]
    given_up = {"state": "failed", "next": "out of memory", "quarantined": []}
    assert problems(evidence(status=given_up)) == ["its state is failed: out of memory"]


def test_a_loss_of_any_attempt_differs_by_a_bit() -> None:
    lines = two_attempts(2)
    lines[3] = {**lines[3], "loss": (float.fromhex(lines[3]["loss"]) + 2**-48).hex()}
    assert problems(spoilt(2, lines)) == ["attempt 1, rank 2: another loss at step 3"]


def test_a_second_writer() -> None:
    late = step(6, attempt=1, rank=1)
    found = problems(spoilt(1, [*two_attempts(1), late]))
    assert "rank 1: attempt 1 wrote step 6 after attempt 2 had begun" in found


def test_a_step_left_out_and_a_step_done_twice() -> None:
    lines = two_attempts(0)
    assert any("samples were used" in text for text in problems(spoilt(0, lines[:3] + lines[4:])))
    twice = problems(spoilt(0, [*lines[:3], lines[2], *lines[3:]]))
    assert "step 2, rank 0: done 2 times by attempt 1" in twice


def test_another_ranks_samples() -> None:
    lines = two_attempts(0)
    lines[2] = {**lines[2], "samples": lines[1]["samples"]}
    assert problems(spoilt(0, lines)) == [
        f"{GOAL * 8} samples were used, {GOAL * 8 - 2} different ones"
    ]


def test_resumed_from_an_older_checkpoint_than_need_be() -> None:
    def ranks(rank: int) -> list[Line]:
        first = (
            attempt(1, 1, 3, rank=rank, saved=True) + attempt(1, 4, 5, rank=rank, saved=True)[1:]
        )
        return [*first, *attempt(2, 4, GOAL, rank=rank, saved=True)]

    again = evidence(ranks=[ranks(rank) for rank in range(WORLD_SIZE)], strikes=[])
    assert problems(again) == ["attempt 2 resumed from 3 instead of 5"]
    bad = {**again.status, "quarantined": [{"step": 5, "reason": "cut short"}]}
    hurt = strike("damaged checkpoint", damaged=5)
    assert problems(dataclasses.replace(again, status=bad, strikes=[hurt])) == []
    assert "good checkpoint of step 5" in problems(dataclasses.replace(again, status=bad))[0]


def test_two_jobs_at_the_same_time() -> None:
    both = [Span("1", "RUNNING", 50, 113), Span("2", "COMPLETED", 112, 150)]
    assert "job 2 started at 112" in problems(evidence(spans=both))[0]
    assert problems(evidence(spans=[])) == ["accounting knows no job of it"]


def test_steps_lost_to_a_notice() -> None:
    def ranks(rank: int) -> list[Line]:
        first = attempt(1, 1, 5, rank=rank, saved=False)
        return [*first, *attempt(2, 1, GOAL, rank=rank, saved=True)]

    lost = evidence(ranks=[ranks(rank) for rank in range(WORLD_SIZE)])
    assert steps_lost(lost.ranks, 1) == 5
    assert "attempt 1 lost 5 steps" in problems(lost)[0]
    # One that met something else as well, or that was no notice, may lose them.
    storm = [*lost.strikes, strike("controller stop")]
    assert problems(dataclasses.replace(lost, strikes=storm)) == []
    assert problems(dataclasses.replace(lost, strikes=[strike("killed worker")])) == []


def test_every_bit_of_a_file_changes_what_is_loaded() -> None:
    state = curve.advance(curve.START, [1, 2])
    data = curve.pack(state)
    assert curve.unpack(data) == state
    for place in (0, len(data) // 2, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        assert curve.unpack(bytes(changed)) != state
