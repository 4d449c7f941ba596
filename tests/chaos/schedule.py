"""Which faults, when and how: all of it follows from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

# When a fault strikes: some steps after the fault before; as soon as the attempt after the fault
# before has been numbered; while a checkpoint is being written; while no workers are there; right
# after the fault before, whatever the run does.
Moment = Literal["training", "starting", "saving", "down", "at once"]
ANY: tuple[Moment, ...] = ("training", "training", "starting", "saving", "at once")
TRAINING: tuple[Moment, ...] = ("training", "training", "saving")
ALWAYS: tuple[Moment, ...] = ("training", "starting", "saving", "down")


@dataclass(frozen=True, slots=True)
class Kind:
    """What may be drawn of one kind of fault.

    Attributes:
        weight: How often it is drawn, once every kind is there.
        ways: Variants; their words are for `faults`.
        seconds: Between how many seconds and how many it lasts.
        weather: It strikes the cluster, and not one run.
        notice: The run is told, and has the time to save.
    """

    weight: int
    moments: tuple[Moment, ...]
    ways: tuple[str, ...] = ("",)
    seconds: tuple[float, float] = (0.0, 0.0)
    weather: bool = False
    notice: bool = False


KINDS: dict[str, Kind] = {
    "preemption": Kind(
        8,
        ANY,
        ("user signal, one node", "user signal, all nodes", "no signal, one node", "no signal"),
        (1, 6),
        notice=True,
    ),
    "signal": Kind(3, ANY, ("USR2 to the steps", "USR2 to the shell", "TERM"), notice=True),
    "fsdpq requeue": Kind(2, ANY, notice=True),
    "time limit": Kind(1, TRAINING, notice=True),
    "drained node": Kind(1, TRAINING, seconds=(5, 15), notice=True),
    "power off": Kind(3, ANY, seconds=(5, 50)),
    "loud host loss": Kind(3, ANY, seconds=(1, 20)),
    "cut cable": Kind(2, ANY, seconds=(20, 45)),
    "short cut": Kind(1, TRAINING, seconds=(1, 6)),
    "raising rank": Kind(3, ("training", "starting")),
    "killed worker": Kind(3, ANY, ("KILL", "SEGV", "ABRT")),
    "killed in save": Kind(2, ("training",)),
    "killed torchrun": Kind(1, ANY),
    "killed batch shell": Kind(1, ANY),
    "killed slurmd": Kind(1, ANY, seconds=(1, 8)),
    "full disk": Kind(3, ("training",), ("all of it", "room for small files"), (1, 6)),
    "damaged checkpoint": Kind(
        5,
        ("training",),
        tuple(
            f"{what}, {when}"
            for what in ("flipped bit", "cut short", "missing file", "missing manifest")
            for when in ("while it trains", "while it is down")
        ),
    ),
    "controller restart": Kind(3, ALWAYS, weather=True),
    "controller stop": Kind(2, ALWAYS, seconds=(3, 30), weather=True),
    "accounting restart": Kind(1, ALWAYS, weather=True),
    "accounting stop": Kind(2, ALWAYS, seconds=(5, 40), weather=True),
    "killed watcher": Kind(4, ALWAYS, ("one", "all"), (0, 25), weather=True),
    "paused watcher": Kind(2, ALWAYS, ("one", "all"), (3, 25), weather=True),
}
# Only a run whose hangs are noticed survives these.
HANGS: dict[str, Kind] = {
    "stopped rank": Kind(2, TRAINING),
    "rank that sleeps": Kind(2, ("training",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of the schedule.

    Attributes:
        run: The run that it strikes, or whose moment it waits for.
        steps: How many steps that run does first.
        way: The variant.
        pick: Chooses the rank, host or file among those there are (modulo their number).
    """

    number: int
    kind: str
    run: int
    moment: Moment
    steps: int
    way: str
    pick: int
    seconds: float

    @property
    def traits(self) -> Kind:
        """What its kind is."""
        return (KINDS | HANGS)[self.kind]


def schedule(
    seed: int, *, faults: int, runs: int, hang: bool = False, only: Collection[str] = ()
) -> tuple[Fault, ...]:
    """The faults of a seed, in the order in which they are numbered.

    Every kind is there once if there are enough faults; each run gets as many as another.

    Raises:
        ValueError: A kind in ``only`` does not exist.
    """
    kinds = KINDS | HANGS if hang or only else KINDS
    if unknown := set(only) - set(kinds):
        raise ValueError(f"no such kinds: {sorted(unknown)}; there are {', '.join(kinds)}")
    kinds = {name: kind for name, kind in kinds.items() if not only or name in only}
    rng = random.Random(seed)
    names = _names(rng, kinds, faults)
    targets = _targets(rng, names, kinds, runs)
    return tuple(
        _fault(rng, number, name, kinds[name], run)
        for number, (name, run) in enumerate(zip(names, targets, strict=True), start=1)
    )


def _names(rng: random.Random, kinds: dict[str, Kind], count: int) -> list[str]:
    each = list(kinds)
    rng.shuffle(each)
    more = max(0, count - len(each))
    weights = [kind.weight for kind in kinds.values()]
    names = each[:count] + rng.choices(list(kinds), weights, k=more)
    rng.shuffle(names)
    return names


def _targets(
    rng: random.Random, names: Sequence[str], kinds: dict[str, Kind], runs: int
) -> list[int]:
    """The runs in turn for what strikes one run, any of them for the weather."""
    turn = rng.randrange(runs)
    targets = []
    for name in names:
        targets.append(rng.randrange(runs) if kinds[name].weather else turn)
        turn = turn if kinds[name].weather else (turn + 1) % runs
    return targets


def _fault(rng: random.Random, number: int, name: str, kind: Kind, run: int) -> Fault:
    return Fault(
        number=number,
        kind=name,
        run=run,
        moment=rng.choice(kind.moments),
        steps=rng.randint(3, 30),
        way=rng.choice(kind.ways),
        pick=rng.randrange(1000),
        seconds=round(rng.uniform(*kind.seconds), 1),
    )
