"""The faults that strike one run. Each hits once, lasts as long as it should and is mended."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.checkpoint import list_checkpoints
from orchestrator.runstore import store
from tests.slurm.cluster.config import small_disk

from .ledger import Line, give_order
from .strike import Inject, Strike
from .world import WORLD_SIZE, MissedError, Run, World

HEARD_S = 30.0
LEFT_S = 150.0
WORKERS_S = 60.0
TWO_SAVES_S = 120.0
# Less than a checkpoint, and enough for everything else.
SMALL_ROOM = 100_000


def preemption(world: World, run: Run, strike: Strike) -> None:
    fault = strike.fault
    with world.told_by(user_signal=fault.way.startswith("user signal")):
        hosts, attempt = world.hosts(run), run.attempt
        if "one node" in fault.way:
            hosts = [hosts[fault.pick % len(hosts)]]
        job = world.urgent(hosts, fault.seconds)
        strike.hit(world, f"urgent job {job}", hosts=hosts)
        # The settings must stay until the controller has acted by them.
        world.waited(lambda: _heard(run, attempt), HEARD_S)
    world.waited(lambda: not world.waits(job), LEFT_S)
    world.end_urgent(job)


def _heard(run: Run, attempt: int) -> bool:
    return any(run.layout.attempt(attempt).root.glob("notice.*")) or run.left(attempt)


def sent_signal(world: World, run: Run, strike: Strike) -> None:
    name = "TERM" if strike.fault.way == "TERM" else "USR2"
    where = ["--batch"] if strike.fault.way.endswith("shell") else []
    strike.hit(world, f"job {run.job_id}")
    world.answered(["scancel", *where, f"--signal={name}", run.job_id])


def fsdpq_requeue(world: World, run: Run, strike: Strike) -> None:
    strike.hit(world)
    done = world.user.fsdpq("requeue", str(run.path), check=False, timeout=300)
    strike.what = (done.stdout + done.stderr).strip().replace("\n", "; ")


def time_limit(world: World, run: Run, strike: Strike) -> None:
    attempt, job = run.attempt, run.job_id
    start = store.read_json(run.layout.attempt(attempt).start) or {}
    ran_s = time.time() - start.get("started_at", time.time())
    minutes = math.ceil((ran_s + 15) / 60)
    strike.hit(world, f"job {job}: {minutes} min after {ran_s:.0f} s")
    world.answered(["scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}"])
    world.waited(lambda: run.left(attempt), LEFT_S)
    world.answered(["scontrol", "update", f"JobId={job}", "TimeLimit=60"], user="root")


def drained_node(world: World, run: Run, strike: Strike) -> None:
    with world.breaking(run, strike.fault.pick) as host:
        node, attempt = f"NodeName={host}", run.attempt
        drain = ["State=DRAIN", "Reason=chaos"]
        world.answered(["scontrol", "update", node, *drain], user="root")
        strike.hit(world, host, hosts=[host])
        try:
            world.answered(["scancel", "--signal=USR2", run.job_id])
            world.waited(lambda: run.left(attempt), LEFT_S)
            world.last(strike.fault.seconds)
        finally:
            world.answered(["scontrol", "update", node, "State=RESUME"], user="root")


def _host_fault(world: World, run: Run, strike: Strike, act: Callable[[str], object]) -> None:
    with world.breaking(run, strike.fault.pick) as host:
        strike.hit(world, host, hosts=[host])
        act(host)
        world.last(strike.fault.seconds)


def power_off(world: World, run: Run, strike: Strike) -> None:
    _host_fault(world, run, strike, world.cluster.power_off)


def host_loss(world: World, run: Run, strike: Strike) -> None:
    _host_fault(world, run, strike, world.cluster.kill_host)


def cut_cable(world: World, run: Run, strike: Strike) -> None:
    _host_fault(world, run, strike, world.cluster.cut_cable)


def killed_slurmd(world: World, run: Run, strike: Strike) -> None:
    _host_fault(world, run, strike, world.cluster.kill_slurmd)


def raising_rank(world: World, run: Run, strike: Strike) -> None:
    _order(world, run, strike, "raise")


def killed_in_save(world: World, run: Run, strike: Strike) -> None:
    _order(world, run, strike, "die-in-save")


def sleeping_rank(world: World, run: Run, strike: Strike) -> None:
    _order(world, run, strike, "sleep")


def _order(world: World, run: Run, strike: Strike, order: str) -> None:
    rank, attempt = strike.fault.pick % WORLD_SIZE, run.attempt
    strike.hit(world, f"rank {rank}")
    give_order(run.ledger, order, rank)
    world.waited(lambda: run.attempt > attempt, LEFT_S)


def _worker(world: World, run: Run, pick: int) -> Line:
    """A worker of the newest attempt, once they are there."""
    world.waited(lambda: _started(run), WORKERS_S)
    if not _started(run):
        raise MissedError("its workers are not there")
    workers = run.workers()
    return workers[pick % len(workers)]


def _started(run: Run) -> bool:
    return any(worker["attempt"] == run.attempt for worker in run.workers())


def _kill(world: World, run: Run, strike: Strike, key: str, name: str) -> None:
    worker = _worker(world, run, strike.fault.pick)
    strike.hit(world, f"rank {worker['rank']} on {worker['host']}", hosts=[worker["host"]])
    world.on(worker["host"], ["kill", f"-{name}", str(worker[key])])


def killed_worker(world: World, run: Run, strike: Strike) -> None:
    _kill(world, run, strike, "pid", strike.fault.way)


def stopped_rank(world: World, run: Run, strike: Strike) -> None:
    _kill(world, run, strike, "pid", "STOP")


def killed_torchrun(world: World, run: Run, strike: Strike) -> None:
    _kill(world, run, strike, "parent", "KILL")


def killed_batch_shell(world: World, run: Run, strike: Strike) -> None:
    start = store.read_json(run.layout.attempt(run.attempt).start) or {}
    hosts = world.hosts(run)
    if not start or not hosts:
        raise MissedError("its batch shell is not there")
    strike.hit(world, f"on {hosts[0]}", hosts=hosts[:1])
    world.on(hosts[0], ["kill", "-KILL", str(start["pid"])])


def full_disk(world: World, run: Run, strike: Strike) -> None:
    """Fill the file system of the run's directory until an attempt has ended for it."""
    place = world.cluster.from_outside(small_disk(world.cluster.work, run.number)) / "fill"
    room = 0 if strike.fault.way == "all of it" else SMALL_ROOM
    attempt = run.attempt
    strike.hit(world, f"{room} bytes left")
    try:
        world.waited(lambda: _filled(place, room) and run.left(attempt), LEFT_S)
        world.waited(lambda: not _filled(place, room), strike.fault.seconds)
    finally:
        place.unlink()


def _filled(place: Path, room: int) -> bool:
    """Take what is free but for some bytes, again and again: a failed save gives back its own."""
    with place.open("ab") as file:
        disk = os.fstatvfs(file.fileno())
        if (free := disk.f_bavail * disk.f_frsize - room) > 0:
            with contextlib.suppress(OSError):  # the run has taken of it since; the next time then
                os.posix_fallocate(file.fileno(), file.tell(), free)
    return True


def damaged_checkpoint(world: World, run: Run, strike: Strike) -> None:
    """Damage the newest checkpoint; then an attempt ends, so that the next one meets it."""
    what, _, when = strike.fault.way.partition(", ")
    world.wait(lambda: len(_complete(run)) > 1, TWO_SAVES_S, f"{run.name} has two checkpoints")
    if when == "while it is down":
        attempt, job = run.attempt, run.job_id
        world.answered(["scancel", "--signal=USR2", job])
        world.waited(lambda: run.left(attempt), LEFT_S)
    newest = _complete(run)[0]
    file = newest / f"rank-{strike.fault.pick % WORLD_SIZE}.bin"
    strike.hit(world, f"{newest.name}/{file.name}")
    strike.damaged = int(newest.name.removeprefix("step-"))
    DAMAGES[what](file)
    if when != "while it is down":
        worker = _worker(world, run, strike.fault.pick)
        world.on(worker["host"], ["kill", f"-{signal.SIGKILL}", str(worker["pid"])])


def _complete(run: Run) -> list[Path]:
    return [found.path for found in list_checkpoints(run.layout.checkpoints) if found.complete]


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 4
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped bit": _flip,
    "cut short": lambda file: os.truncate(file, file.stat().st_size - 1),
    "missing file": Path.unlink,
    "missing manifest": lambda file: (file.parent / "manifest.json").unlink(),
}
FAULTS: dict[str, Inject] = {
    "preemption": preemption,
    "signal": sent_signal,
    "fsdpq requeue": fsdpq_requeue,
    "time limit": time_limit,
    "drained node": drained_node,
    "power off": power_off,
    "loud host loss": host_loss,
    "cut cable": cut_cable,
    "short cut": cut_cable,
    "raising rank": raising_rank,
    "killed worker": killed_worker,
    "killed in save": killed_in_save,
    "killed torchrun": killed_torchrun,
    "killed batch shell": killed_batch_shell,
    "killed slurmd": killed_slurmd,
    "full disk": full_disk,
    "damaged checkpoint": damaged_checkpoint,
    "stopped rank": stopped_rank,
    "rank that sleeps": sleeping_rank,
}
