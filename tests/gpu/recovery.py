"""The parts of tests.gpu.eight that two hosts under a real Slurm are needed for."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from tests.gpu import hosts
from tests.gpu.hosts import Machine
from tests.gpu.results import Record, Results
from tests.slurm.cluster import Cluster
from tests.slurm.user import FsdpqUser, attempts, last_step, steps

URGENT_S = 2
EVERY = 6


@dataclass(frozen=True)
class Scene:
    """Where a part is measured."""

    cluster: Cluster
    user: FsdpqUser
    here: Machine
    args: argparse.Namespace


def train(scene: Scene) -> dict[str, Any]:
    """Return the `train:` part of the job: each host holds the whole model."""
    here = scene.here
    if here.real:
        size = {"hidden": 4096, "inner": 14336, "layers": scene.args.layers, "heads": 32}
        config = hosts.llama(**size, vocab=128256, seq_len=4096)
    else:
        config = hosts.llama(hidden=64, inner=128, layers=2, heads=4, vocab=256, seq_len=64)
    batch = 2
    return {
        "model": {"config": config},
        "data": {"text_files": hosts.text(), "seq_len": config["max_position_embeddings"]},
        "steps": EVERY * 5 if here.real else EVERY * 35,
        "global_batch": batch * here.gpus,
        "micro_batch": batch,
        "mesh": "hsdp",
        "precision": "bf16" if here.real else "fp32",
        "activation_checkpointing": "selective",
        "deterministic": False,
        "checkpoint": {
            "every_steps": EVERY if here.real else EVERY * 5,
            "mode": "async",
            "keep_last": 2,
        },
    }


def bench(scene: Scene, results: Results) -> None:
    """Measure the bandwidth between the hosts with fsdpq's own command."""
    here, user = scene.here, scene.user
    keys = {"site": str(user.home / "site.yaml"), "gpus_per_node": here.gpus_per_host}
    path = user.job_file("bench", train=train(scene), **keys)
    done = user.fsdpq("diagnose", "--bench", str(path), "--json", timeout=scene.args.patience)
    record = json.loads(done.stdout)
    for item in record["measurements"]:
        what = f"{item['collective']}, {item['size'] / 2**20:g} MiB, {here.gpus} ranks"
        results.add({"part": "bench", "what": what, "bus_gbs": item["bus_gbs"]})
    results.add({"part": "bench", "what": "finding", "said": json.dumps(record["finding"])})


def recover(scene: Scene, results: Results) -> None:
    """Train, be preempted with notice, come back, lose a host, and go on with the other."""
    cluster, user, here = scene.cluster, scene.user, scene.here
    every = train(scene)["checkpoint"]["every_steps"]
    elastic = {"min_nodes": 1, "patience_s": 5}
    run = hosts.submit(user, here, "recover", train(scene), elastic=elastic)
    user.start("watch", "recover", "--every", "1")
    await_that(scene, lambda: saved(run) >= every, "a checkpoint is there")
    await_that(scene, lambda: last_step(run) > saved(run) + 1, "it has trained on")
    cluster.submit_prod(nodes=here.hosts, seconds=URGENT_S)
    await_that(scene, lambda: attempts(run) == 2, "it is back")
    await_that(scene, lambda: trains(run, 2), "it trains")
    tell(results, notice(run, user))
    before = saved(run)
    await_that(scene, lambda: saved(run) > before, "the next checkpoint is there")
    await_that(scene, lambda: last_step(run) > saved(run) + 1, "it has trained on")
    lost_at = lose_host(scene)
    await_that(scene, lambda: attempts(run) == 3, "it is back on the other host")
    await_that(scene, lambda: trains(run, 3), "it trains there")
    tell(results, loss(run, user, lost_at))
    costs = [cost(save) for save in hosts.saves(run)]
    tell(results, *costs)
    await_that(scene, run.finished.exists, "it is finished")
    tell(results, *whole(run), *map(cost, hosts.saves(run)[len(costs) :]))
    if any(status["steps_lost"] for status in user.status("recover")["attempts"][:1]):
        raise RuntimeError("the preemption with notice lost steps")


def lose_host(scene: Scene) -> float:
    """Switch the last host off; return when, in seconds since 1970."""
    scene.cluster.power_off(scene.cluster.nodes[-1])
    return time.time()


def tell(results: Results, *rows: Record) -> None:
    """Keep rows of this part."""
    for row in rows:
        results.add({"part": "recover", **row})


def await_that(scene: Scene, done: Callable[[], bool], what: str) -> None:
    """Return once something has come true."""
    scene.cluster.wait_for(done, scene.args.patience, what)


def saved(run: RunLayout) -> int:
    """Return the newest step that was saved, or 0."""
    return max((save["step"] for save in hosts.saves(run)), default=0)


def trains(run: RunLayout, attempt: int) -> bool:
    """Return whether an attempt has done a step and told what its start took."""
    return run.attempt(attempt).startup.exists() and steps(run)[-1]["attempt"] == attempt


def restart(run: RunLayout, attempt: int, since: float) -> Record:
    """Return what a restart took, in seconds."""
    first = next(line for line in steps(run) if line["attempt"] == attempt)
    started = (store.read_json(run.attempt(attempt).start) or {})["started_at"]
    told = store.read_json(run.attempt(attempt).startup) or {}
    return {
        "to_start_s": started - since,
        "to_first_step_s": first["at"] - since,
        "start_to_first_step_s": first["at"] - started,
        "load_s": told.get("load_s"),
        "first_step_s": told.get("first_step_s"),
        "world_size": first["world_size"],
        "samples_per_step": first["samples"][1],
    }


def notice(run: RunLayout, user: FsdpqUser) -> Record:
    """Return what the preemption cost, since the notice."""
    at = hosts.noticed_at(run.attempt(1))
    ended = (store.read_json(run.attempt(1).exit) or {})["ended_at"]
    row = user.status(run.name)["attempts"][0]
    said = {"cause": row["cause"], "steps_lost": row["steps_lost"], "to_end_s": ended - at}
    return {"what": "preempted with notice", **said, **restart(run, 2, at)}


def loss(run: RunLayout, user: FsdpqUser, lost_at: float) -> Record:
    """Return what the loss of a host cost, since then."""
    row = user.status(run.name)["attempts"][1]
    said = {"cause": row["cause"], "steps_lost": row["steps_lost"]}
    return {"what": "lost a host without notice", **said, **restart(run, 3, lost_at)}


def whole(run: RunLayout) -> list[Record]:
    """Return what the steps of each number of ranks took, and whether none is missing."""
    lines = {line["step"]: line for line in steps(run)}
    sizes = sorted({line["world_size"] for line in lines.values()}, reverse=True)
    found: list[Record] = []
    for size in sizes:
        some = [line for line in lines.values() if line["world_size"] == size]
        rate = median(line["tokens_per_s"] for line in some) / size
        found.append(
            {
                "what": f"steps on {size} ranks",
                "steps": len(some),
                "step_s": median(line["step_s"] for line in some),
                "tokens_per_s_per_gpu": rate,
                "peak_gib": some[-1]["peak_memory_gib"],
                "samples_per_step": sorted({line["samples"][1] for line in some}),
            }
        )
    starts = [lines[step]["samples"][0] for step in sorted(lines)]
    batch = lines[1]["samples"][1]
    sound = starts == [batch * i for i in range(len(starts))]
    return [*found, {"what": "every sample once, in order", "held": sound}]


def cost(save: dict[str, Any]) -> Record:
    """Return what a save took."""
    return {
        "what": f"save of step {save['step']}, {save['reason']}",
        "gib": (save["bytes"] or 0) / 2**30,
        "seconds": save["seconds"],
        "blocked_s": save["blocked_s"],
        "in_background": not save["blocking"],
    }


PARTS: dict[str, Callable[[Scene, Results], None]] = {"bench": bench, "recover": recover}
