"""The faults that strike the cluster: its controller, its accounting, the watchers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .strike import Inject, Strike
from .world import WATCHERS, Run, World


def controller(world: World, run: Run, strike: Strike) -> None:
    with world.settings:
        strike.hit(world)
        try:
            world.cluster.stop_controller()
            world.last(strike.fault.seconds)
        finally:
            world.cluster.start_controller()


def accounting(world: World, run: Run, strike: Strike) -> None:
    strike.hit(world)
    try:
        world.cluster.stop_accounting()
        world.last(strike.fault.seconds)
    finally:
        world.cluster.start_accounting()


def _chosen(strike: Strike) -> list[int]:
    return list(range(WATCHERS)) if strike.fault.way == "all" else [strike.fault.pick % WATCHERS]


def killed_watcher(world: World, run: Run, strike: Strike) -> None:
    chosen = _chosen(strike)
    strike.hit(world, f"{len(chosen)} of {WATCHERS}")
    for number in chosen:
        world.kill_watcher(number)
    world.last(strike.fault.seconds)
    for number in chosen:
        world.start_watcher(number)


def paused_watcher(world: World, run: Run, strike: Strike) -> None:
    """Stop watchers in whatever they do; what they know is old when they go on."""
    chosen = _chosen(strike)
    strike.hit(world, f"{len(chosen)} of {WATCHERS}")
    for number in chosen:
        _signal(world, number, signal.SIGSTOP)
    try:
        world.last(strike.fault.seconds)
    finally:
        for number in chosen:
            _signal(world, number, signal.SIGCONT)


def _signal(world: World, number: int, sent: signal.Signals) -> None:
    """Signal a watcher and the nsenter above it, which stops itself when its child is stopped."""
    parent = world.watchers[number].pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for pid in (*map(int, children), parent):
        os.kill(pid, sent)


WEATHER: dict[str, Inject] = {
    "controller restart": controller,
    "controller stop": controller,
    "accounting restart": accounting,
    "accounting stop": accounting,
    "killed watcher": killed_watcher,
    "paused watcher": paused_watcher,
}
