"""Preempt a training on real GPUs under a real Slurm, and compare it with one left alone.

    python -m tests.gpu.slurm [--hosts 2] [--gpus-per-host 1] [--debs DIR] [--out DIR]
        [--layers 24] [--hidden 1024] [--steps 60]

Needs root. Each host has GPUs of its own and nothing but a network to the others, so NCCL goes over
sockets. A job of a higher partition preempts the first run, with notice; then the same job runs
undisturbed. Prints a table for RESULTS.md; exits with the number of expectations that did not hold.
--debs unpacks Slurm from a folder of .deb files first. Without GPUs it trains a tiny model with
gloo, which is how the script itself is tried.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from orchestrator.planner.families import shape_of
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from tests.gpu import hosts
from tests.gpu.hosts import Machine
from tests.gpu.results import about
from tests.slurm.cluster import Cluster
from tests.slurm.user import FsdpqUser, attempts, last_step, steps

KEYS = ("step", "loss", "grad_norm", "lr", "samples")
URGENT_S = 2
PARTS = ("import", "connect", "resume", "build", "load", "first_step")


def train(args: argparse.Namespace, here: Machine) -> dict[str, Any]:
    """Return the `train:` part of the job."""
    config = hosts.llama(
        hidden=args.hidden,
        inner=args.hidden * 4,
        layers=args.layers,
        heads=max(1, args.hidden // 64),
        vocab=args.vocab,
        seq_len=args.seq_len,
    )
    return {
        "model": {"config": config},
        "data": {"text_files": hosts.text(), "seq_len": args.seq_len},
        "steps": args.steps,
        "global_batch": args.batch * here.gpus,
        "micro_batch": args.batch,
        "precision": "bf16" if here.real else "fp32",
        "deterministic": True,
        "checkpoint": {"every_steps": 100_000},
    }


def preempted(
    args: argparse.Namespace, cluster: Cluster, user: FsdpqUser, here: Machine
) -> RunLayout:
    """Return a run that was preempted once, with notice, and came back."""
    run = hosts.submit(user, here, "preempted", train(args, here), preflight=args.preflight)
    watcher = user.start("watch", "preempted", "--every", "1")
    await_step(args, cluster, run, args.steps // 3)
    cluster.submit_prod(nodes=here.hosts, seconds=URGENT_S)
    cluster.wait_for(lambda: attempts(run) == 2, args.patience, "it is back")
    await_end(args, cluster, run)
    watcher.wait(30)
    return run


def alone(args: argparse.Namespace, cluster: Cluster, user: FsdpqUser, here: Machine) -> RunLayout:
    """Return a run that was left alone."""
    run = hosts.submit(user, here, "alone", train(args, here), preflight=args.preflight)
    await_end(args, cluster, run)
    return run


def await_step(args: argparse.Namespace, cluster: Cluster, run: RunLayout, goal: int) -> None:
    """Return once a step is done.

    Raises:
        RuntimeError: The attempt ended before.
    """

    def there() -> bool:
        if run.attempt(1).exit.exists():
            raise RuntimeError(f"{run.name}: {run.attempt(1).exit.read_text()}")
        return last_step(run) >= goal

    cluster.wait_for(there, args.patience, f"{run.name} has done step {goal}")


def await_end(args: argparse.Namespace, cluster: Cluster, run: RunLayout) -> None:
    """Return once the run is finished.

    Raises:
        RuntimeError: Its last attempt failed.
    """

    def ended() -> bool:
        found = store.read_json(run.attempt(attempts(run)).exit) or {}
        if found.get("action") not in (None, "requeue") and not run.finished.exists():
            raise RuntimeError(f"{run.name}: {found}")
        return run.finished.exists()

    cluster.wait_for(ended, args.patience, f"{run.name} is finished")


def curve(run: RunLayout) -> list[tuple[str, ...]]:
    """Return what must not differ by a bit."""
    return [tuple(str(line[key]) for key in KEYS) for line in steps(run)]


def startup(run: RunLayout, attempt: int) -> dict[str, float]:
    """Return the parts of an attempt's start, in seconds."""
    found = store.read_json(run.attempt(attempt).startup) or {}
    return {part: found[f"{part}_s"] for part in PARTS if f"{part}_s" in found}


def of_preempted(run: RunLayout, user: FsdpqUser) -> dict[str, Any]:
    """Return what the preemption cost. Seconds since the notice."""
    status = user.status(run.name)
    noticed = hosts.noticed_at(run.attempt(1))
    ended = (store.read_json(run.attempt(1).exit) or {})["ended_at"]
    started = (store.read_json(run.attempt(2).start) or {})["started_at"]
    first = next(line for line in steps(run) if line["attempt"] == 2)
    return {
        "attempts": len(status["attempts"]),
        "causes": [row["cause"] for row in status["attempts"]],
        "job ids": len({row["job_id"] for row in status["attempts"]}),
        "steps lost": sum(row["steps_lost"] for row in status["attempts"]),
        "stopped after step": first["step"] - 1,
        "notice to end of attempt, s": round(ended - noticed, 1),
        "notice to start of next attempt, s": round(started - noticed, 1),
        "notice to first step after restart, s": round(first["at"] - noticed, 1),
        "start of attempt to first step, s": round(first["at"] - started, 1),
        "parts of the restart, s": startup(run, 2),
        "load, s": startup(run, 2).get("load"),
    }


def of_both(run: RunLayout, other: RunLayout) -> dict[str, Any]:
    """Return what two runs of the same job have, and have not, in common."""
    one, two = curve(run), curve(other)
    first, last = steps(other)[0], steps(other)[-1]
    return {
        "steps": len(one),
        "steps that differ": sum(a != b for a, b in zip(one, two, strict=False))
        + abs(len(one) - len(two)),
        "loss, first and last": [first["loss"], last["loss"]],
        "step, s": round(median(line["step_s"] for line in steps(other)[5:]), 4),
        "tokens/s/GPU": round(
            median(line["tokens_per_s"] for line in steps(other)[5:]) / first["world_size"]
        ),
        "peak memory, GiB": last["peak_memory_gib"],
        "start of attempt to first step, first start, s": round(
            first["at"] - (store.read_json(other.attempt(1).start) or {})["started_at"], 1
        ),
        "saves": [
            f"{save['reason']}: {save['bytes'] / 2**30:.2f} GiB in {save['seconds']:.1f} s"
            for save in (*hosts.saves(run), *hosts.saves(other))
        ],
    }


def of_hosts(run: RunLayout) -> dict[str, Any]:
    """Return where it ran."""
    found = [hosts.bus_ids(run.attempt(number)) for number in range(1, attempts(run) + 1)]
    return {
        "GPUs that NCCL used": [sorted(f"{host} {bus}" for host, bus in one) for one in found],
        "network": hosts.network(run.attempt(1)),
        "NCCL's channels": hosts.channels(run.attempt(1)),
    }


def expectations(found: dict[str, Any], here: Machine) -> dict[str, bool]:
    """Return what should have come true, and whether it did."""
    used = found["GPUs that NCCL used"]
    apart = [len({gpu.split()[1] for gpu in one}) == here.gpus for one in used]
    return {
        "two attempts of one job": (found["attempts"], found["job ids"]) == (2, 1),
        "stopped by the notice": found["causes"] == ["notice, saved", "finished"],
        "no step lost": found["steps lost"] == 0,
        "no step differs by a bit": found["steps that differ"] == 0,
        "each rank had a GPU of its own": not here.real or all(apart),
    }


def measure(args: argparse.Namespace, here: Machine, found: dict[str, Any]) -> None:
    """Bring the cluster up, run both, and add the figures to ``found`` as they come."""
    began = time.monotonic()
    with Cluster(here.config) as cluster:
        found["cluster up after, s"] = round(time.monotonic() - began, 1)
        user = hosts.alice(cluster, here)
        found["Slurm"] = cluster.run(["sinfo", "--version"]).stdout.strip()
        found["GPUs of each host"] = hosts.seen(cluster)
        try:
            run = preempted(args, cluster, user, here)
            found |= of_hosts(run) | of_preempted(run, user)
            found |= of_both(run, alone(args, cluster, user, here))
            cluster.wait_for(lambda: not user.live_jobs(), args.patience, "no job is left")
        finally:
            hosts.pack(args.out, "slurm", user)
            user.close()
    found["all in all, s"] = round(time.monotonic() - began, 1)


def arguments() -> argparse.Namespace:
    """Return what was asked for; sizes depend on whether there are GPUs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--gpus-per-host", type=int, default=1)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--seq-len", type=int)
    parser.add_argument("--batch", type=int, help="sequences a GPU")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--patience", type=float, help="seconds to wait for anything")
    parser.add_argument("--no-preflight", dest="preflight", action="store_false")
    parser.add_argument("--debs", type=Path, help="unpack Slurm's packages from this folder")
    parser.add_argument("--out", type=Path, help="a folder for figures and logs")
    return parser.parse_args()


def sized(args: argparse.Namespace, here: Machine) -> argparse.Namespace:
    """Return the arguments with sizes that fit: 0.4 B on GPUs, a tiny model else."""
    large = {"layers": 24, "hidden": 1024, "vocab": 32000, "seq_len": 2048, "batch": 4}
    tiny = {"layers": 2, "hidden": 64, "vocab": 256, "seq_len": 64, "batch": 2}
    more = {"steps": 60, "patience": 180} if here.real else {"steps": 200, "patience": 400}
    for key, value in {**(large if here.real else tiny), **more}.items():
        if getattr(args, key) is None:
            setattr(args, key, value)
    return args


def main() -> None:
    """Measure and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is closed
    args = arguments()
    hosts.prepare(args.debs)
    here = hosts.machine(args.hosts, args.gpus_per_host)
    args = sized(args, here)
    command = f"python -m tests.gpu.slurm {shlex.join(sys.argv[1:])}"
    found: dict[str, Any] = {"command": command, **about(), "driver": hosts.driver()}
    found["hosts"] = f"{here.hosts} of {here.gpus_per_host} GPU"
    shape = shape_of(train(args, here)["model"]["config"])
    sizes = {key: getattr(args, key) for key in ("layers", "hidden", "seq_len", "batch")}
    found["model"] = {"parameters": shape.parameters, **sizes}
    try:
        measure(args, here, found)
        found["held"] = expectations(found, here)
    finally:
        for key, value in found.items():
            print(f"| {key} | {value} |", flush=True)
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / "slurm.json").write_text(json.dumps(found, indent=2))
    sys.exit(list(found["held"].values()).count(False))


if __name__ == "__main__":
    main()
