"""One round: a run that needs a watcher, watchers that are killed, one that is not, a judgement."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from orchestrator.rundir.layout import RunLayout
from orchestrator.submitting import submission  # noqa: F401 (so that no watcher has to import it)
from tests.rounds import check, scene
from tests.rounds.clock import Clock
from tests.rounds.jobs import Slurm
from tests.rounds.watcher import Deed, fork

TICK_S = 0.01
# How long a phase takes at most, by the clock of the round. Within it every process is started
# and killed, so none is held up for longer; the product trusts that none is for four minutes
# between saying that it submits and submitting.
PHASE_S = 90.0
PASSES = 16
FAULTS = {
    "sbatch": (
        *("kill-before", "kill-late", "kill-effect", "effect-kill", "answer-kill"),
        *("lost-none", "lost-effect", "lost-late", "slow", "hang", "down", "refuse"),
    ),
    "requeue": (
        *("kill-before", "kill-effect", "effect-kill", "answer-kill"),
        *("lost-none", "lost-effect", "slow", "hang", "down"),
    ),
    "update": ("kill-before", "effect-kill", "answer-kill", "lost-none", "slow"),
    "squeue": ("kill-before", "effect-kill", "answer-kill", "down", "slow", "hang"),
    "sacct": ("kill-before", "answer-kill", "no database", "slow"),
    "scancel": ("kill-before", "effect-kill", "lost-none"),
}
_AT_MOST_S = {"answer-kill": 0.02, "slow": 60.0, "hang": 0.5}
_WEIGHTS = {"sbatch": 4, "requeue": 4, "update": 1, "squeue": 2, "sacct": 1, "scancel": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a round showed.

    Attributes:
        killed: How many processes were killed by SIGKILL.
        acts: Submissions and requeues that took effect.
        passes: Passes of the undisturbed watcher until the run was stable.
    """

    seed: int
    kind: str
    problems: tuple[str, ...]
    killed: int
    acts: int
    passes: int


def play(seed: int, folder: Path, *, sabotage: bool = False) -> Result:
    """Play the round of ``seed`` in ``folder``, which is left there if something is wrong.

    With ``sabotage`` the watchers claim nothing, do not look again and are not killed, so that they
    submit twice: a judge who finds nothing then would never find anything.
    """
    _adopt_orphans()
    rng = Random(seed)
    kind = "forgotten" if sabotage else rng.choice(sorted(scene.SCENES))
    layout = scene.build(folder, kind, rng)
    stage = Stage(folder, layout, rng, sabotage=sabotage)
    user = [] if sabotage else _users_wishes(rng)
    for number in range(1 if sabotage else rng.choice([1, 2, 3])):
        stage.plan_faults()
        deeds = [*stage.watchers(number), *(user if number == 0 else [])]
        stage.phase(deeds, limit_s=1e6 if sabotage else PHASE_S)
        stage.jump(rng.choice([0.0, rng.uniform(0.0, 20.0), rng.uniform(0.0, 400.0)]))
    passes = 0 if sabotage else stage.settle()
    entries = check.journal(folder)
    result = Result(
        seed=seed,
        kind=kind,
        problems=tuple(stage.judge(entries)),
        killed=stage.killed,
        acts=sum(entry["what"] in ("submit", "requeue") for entry in entries),
        passes=passes,
    )
    if not result.problems:
        shutil.rmtree(folder)
    return result


def _users_wishes(rng: Random) -> list[Deed]:
    """What the user types in between, in some rounds; some of it is killed as well."""
    chance = rng.random()
    if chance > 0.3:
        return []
    words = ["cancel", "llama"] if chance < 0.15 else ["requeue", "llama"]
    if rng.random() < 0.5 and words[0] == "cancel":
        words.insert(1, "--now")
    point = rng.randrange(1, 12) if rng.random() < 0.4 else None
    return [Deed(who="user", argv=tuple(words), after_s=rng.uniform(0.0, 0.3), point=point)]


def _adopt_orphans() -> None:
    """Let what killed watchers leave behind become our children, so that it can be waited for."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


class Stage:
    """Where a round takes place.

    Attributes:
        killed: How many processes died of SIGKILL.
    """

    def __init__(self, folder: Path, layout: RunLayout, rng: Random, *, sabotage: bool) -> None:
        self.folder = folder
        self.layout = layout
        self.killed = 0
        self._rng = rng
        self._clock = Clock(f"{folder}/clock")
        self._sabotage = sabotage

    def plan_faults(self) -> None:
        rng = self._rng
        faults: list[dict[str, Any]] = []
        if self._sabotage:  # they have all read the run's events before the first one acts
            hang = {"call": "squeue", "who": None, "fault": "hang", "seconds": 1.5}
            faults += [dict(hang) for _ in range(4)]
        for _ in range(0 if self._sabotage else rng.choice([0, 1, 2, 3, 5])):
            (call,) = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            fault = rng.choice(FAULTS[call])
            seconds = rng.uniform(0.0, _AT_MOST_S.get(fault, 100.0))
            # In some rounds whoever comes to this point meets the same fate.
            times = 4 if rng.random() < 0.15 else 1
            one = {"call": call, "who": None, "fault": fault, "seconds": seconds}
            faults += [dict(one) for _ in range(times)]
        with Slurm(str(self.folder)) as slurm:
            slurm.state["faults"] = faults + slurm.state["faults"]
            if self._sabotage:
                slurm.state["lives"] = []

    def watchers(self, phase: int) -> list[Deed]:
        """Two to four of them; most are killed, by the clock or at a point of their own."""
        return [self._watcher(f"w{phase}{n}") for n in range(self._rng.choice([2, 3, 4]))]

    def _watcher(self, who: str) -> Deed:
        rng = self._rng
        if self._sabotage:
            return Deed(who=who, argv=("watch", "llama", "--once"))
        once = rng.random() < 0.6
        argv = ("watch", "llama", "--once") if once else ("watch", "llama", "--every", "2")
        deed = Deed(who=who, argv=argv, after_s=rng.uniform(0.0, 0.25))
        match rng.choice(["time", "time", "point", "point", "fault"]):
            case "time":
                return replace(deed, lives_s=rng.uniform(0.0, 0.8))
            case "point":
                point = min(rng.randrange(1, 26), rng.randrange(1, 26))
                return replace(deed, point=point, torn=rng.random() < 0.3)
        return deed

    def phase(self, deeds: Sequence[Deed], *, limit_s: float) -> None:
        """Start and kill all; nothing of it is left when this returns."""
        argvs = {deed.who: (*deed.argv, "--runs", str(self.layout.root.parent)) for deed in deeds}
        waiting = sorted(deeds, key=lambda deed: deed.after_s)
        running: dict[int, tuple[Deed, float]] = {}
        began, left_s = time.monotonic(), limit_s
        speed = self._rng.choice([40.0, 100.0, 200.0])
        last = self._clock.offset()
        while waiting or running:
            now = time.monotonic() - began
            while waiting and waiting[0].after_s <= now:
                deed = waiting.pop(0)
                deed = replace(deed, argv=argvs[deed.who])
                running[fork(deed, self.folder, sabotage=self._sabotage)] = (deed, now)
            self._reap(running)
            used = self._clock.offset() - last
            left_s, last = left_s - used, last + used
            over = left_s <= 0
            for pid, (deed, since) in running.items():
                late = deed.lives_s is not None and now - since > deed.lives_s
                if late or over:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if over:
                waiting.clear()
            self._clock.forward(speed * TICK_S)
            time.sleep(TICK_S)
        self._wait_for_orphans()

    def _reap(self, running: dict[int, tuple[Deed, float]]) -> None:
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del running[pid]
                self.killed += os.WIFSIGNALED(status)

    def _wait_for_orphans(self) -> None:
        """Commands of killed watchers go on; their effect belongs to this phase."""
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)

    def jump(self, seconds: float) -> None:
        """Let nobody look for so long."""
        self._clock.forward(seconds)
        with Slurm(str(self.folder)):
            pass

    def settle(self) -> int:
        """Let one watcher after the other look, undisturbed, until nothing changes any more."""
        with Slurm(str(self.folder)) as slurm:
            refused = [f for f in slurm.state["faults"] if f["fault"] == "refuse"]
            slurm.state["faults"] = [f for f in refused if f["call"] == "requeue"]
        quiet = 0
        for number in range(1, PASSES + 1):
            before = self._picture()
            deed = Deed(who=f"last{number}", argv=("watch", "llama", "--once"))
            self.phase([deed], limit_s=600.0)
            self.jump([5.0, 30.0, 130.0, 250.0, 650.0][min(number - 1, 4)])
            quiet = quiet + 1 if self._picture() == before else 0
            if quiet >= 2 and self._stable() and not self._lost():
                return number
        return PASSES

    def _picture(self) -> object:
        state = self.state()
        jobs = {key: (job["state"], job["restart"]) for key, job in state["jobs"].items()}
        return jobs, self.layout.events.read_bytes(), len(state["arrivals"]), len(state["lives"])

    def _stable(self) -> bool:
        state = self.state()
        return not state["arrivals"] and not any(job["next"] for job in state["jobs"].values())

    def _lost(self) -> list[str]:
        return check.lost(self.state(), cancelled=self.layout.cancelled.exists())

    def state(self) -> dict[str, Any]:
        """Return what the fake Slurm knows."""
        found: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return found

    def judge(self, entries: Sequence[dict[str, Any]]) -> list[str]:
        """Return what is wrong with the round."""
        mark = self.layout.cancelled
        cancelled = mark.exists()
        at = float(json.loads(mark.read_text())["at"]) if cancelled else None
        crashed = [
            f"{log.name}: {log.read_text()[-300:]}"
            for log in self.folder.glob("*.log")
            if "Traceback" in log.read_text()
        ]
        found = check.problems(entries, cancelled_at=at)
        return [*found, *self._lost(), *crashed]
