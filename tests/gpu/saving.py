"""What a save costs the training: fsdpq's in the background against those of DCP, in one run.

    python -m tests.gpu.saving [--layers 16] [--hidden 2048] [--disk DIR] [--only fsdpq,sync]

Trains a Llama on all GPUs of this machine and saves it to memory (/dev/shm) and to disk. For each
way it prints for how long the call blocked, how much longer the next step took, when the
checkpoint was complete, and how much slower the steps were meanwhile. fsdpq's checkpoints are
loaded with plain `dcp.load` and compared, bit by bit, with the state at the moment of the call,
also where one was asked for while another was under way. Without a GPU it runs two workers with
gloo and a tiny model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from orchestrator import runtime
from orchestrator.runtime import Run

if TYPE_CHECKING:
    from orchestrator.spec.train import TrainSpec
    from orchestrator.trainer.training import Training

WAYS = ("fsdpq", "sync", "async", "process")


@dataclass(frozen=True)
class Cost:
    """What one save did. Seconds; `slower` is a share of a step."""

    way: str
    where: str
    blocked_s: float
    next_step_extra_s: float
    done_s: float
    steps_meanwhile: int
    slower: float | None
    sound: str


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--seq-len", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=16, help="steps that tell what a step takes")
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    if "RANK" in os.environ:
        run = runtime.attach()
        with runtime.guard(run):
            _work(run, args)
            sys.stdout.flush()
            os._exit(0)
    sys.exit(_launch())


def _launch() -> int:
    import torch

    workers = torch.cuda.device_count() or 2
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, *torchrun, "-m", "tests.gpu.saving", *sys.argv[1:]],
            check=False,
            env={
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                **os.environ,
                "FSDPQ_RUN_DIR": folder,
                "FSDPQ_ATTEMPT": "1",
            },
        ).returncode


def _spec(args: argparse.Namespace, workers: int) -> TrainSpec:
    import torch

    from orchestrator.spec.train import TrainSpec

    large = torch.cuda.is_available()
    hidden = args.hidden or (2048 if large else 64)
    batch, seq_len = args.batch or (4 if large else 1), args.seq_len or (4096 if large else 32)
    config = {
        "model_type": "llama",
        "vocab_size": 32000 if large else 256,
        "hidden_size": hidden,
        "intermediate_size": hidden * 4,
        "num_hidden_layers": args.layers or (16 if large else 2),
        "num_attention_heads": max(1, hidden // 64),
        "num_key_value_heads": max(1, hidden // 256),
        "max_position_embeddings": seq_len,
    }
    return TrainSpec.model_validate(
        {
            "model": {"config": config},
            "data": {
                "text_files": [f"{sysconfig.get_path('stdlib')}/*.py"],
                "seq_len": seq_len,
            },
            "steps": 100_000,
            "global_batch": batch * workers,
            "micro_batch": batch,
            "precision": "bf16" if large else "fp32",
            "deterministic": False,
            "checkpoint": {"mode": "async", "every_steps": 100_000, "writers": args.writers},
        }
    )


class Bench:
    """A training and the ways to save it."""

    def __init__(self, run: Run, training: Training, args: argparse.Namespace) -> None:
        import torch.distributed as dist

        self.run, self.training, self.args = run, training, args
        self.costs: list[Cost] = []
        self.step_s = 0.0
        self._number = 0
        # DCP's threads use the checkpoint group meanwhile.
        self._group = dist.new_group(backend="gloo")

    def step(self) -> float:
        """Take a step; return its seconds."""
        from orchestrator.trainer.training import train_step

        began = time.perf_counter()
        train_step(self.training)
        _synchronize()
        self.run.heartbeat(self.training.state.step)
        return time.perf_counter() - began

    def together(self, value: float) -> float:
        """Return the largest ``value`` over all ranks."""
        import torch
        import torch.distributed as dist

        box = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(box, dist.ReduceOp.MAX, self._group)
        return float(box)

    def measure(
        self,
        way: str,
        where: str,
        begin: Callable[[], Callable[[], bool]],
        check: Callable[[], str] = lambda: "-",
    ) -> None:
        """Save by ``begin``, train until what it returned is true, then ``check``."""
        _synchronize()
        began = time.perf_counter()
        done = begin()
        blocked_s = self.together(time.perf_counter() - began)
        steps: list[float] = []
        while True:
            ended = not self.together(float(not done()))
            if ended:
                break
            steps.append(self.step())
        done_s = self.together(time.perf_counter() - began)
        after = steps[0] if steps else self.step()
        # The first one has the copy in it, the last one is partly after the end.
        among = steps[1:-1]
        slower = self.together(mean(among)) / self.step_s - 1 if among else None
        extra_s = self.together(after) - self.step_s
        cost = Cost(way, where, blocked_s, extra_s, done_s, len(among), slower, sound=check())
        self.costs.append(cost)
        if self.run.env.rank == 0:
            print(f"measured: {json.dumps(asdict(cost))}", flush=True)

    def folder(self, where: Path) -> Path:
        """Return a name for a checkpoint that nobody has."""
        self._number += 1
        return where / f"step-{self._number}"


def _work(run: Run, args: argparse.Namespace) -> None:
    import torch.distributed as dist

    from orchestrator.trainer.corpus import open_corpus
    from orchestrator.trainer.training import build
    from orchestrator.trainer.world import connect, fix_arithmetic

    spec = _spec(args, run.env.world_size)
    fix_arithmetic(spec)
    corpus = open_corpus(spec.data.text_files, seq_len=spec.data.seq_len)
    world = connect(run.env, spec)
    run.resume()
    training = build(spec, world, corpus, fresh=True)
    bench = Bench(run, training, args)
    for _ in range(4):
        bench.step()
    bench.step_s = bench.together(median(bench.step() for _ in range(args.steps)))
    ways = args.only.split(",")
    places = {"memory": args.memory, "disk": args.disk}
    for where, place in places.items():
        # One folder for all ranks.
        box = [tempfile.mkdtemp(prefix="fsdpq-saving-", dir=place) if run.env.rank == 0 else None]
        dist.broadcast_object_list(box, group=world.checkpoint_group)
        folder = Path(str(box[0]))
        if "fsdpq" in ways:
            _fsdpq(bench, where, folder)
        if "sync" in ways:
            _dcp_sync(bench, where, folder)
        if where == "disk":
            for way in ("async", "process"):
                if way in ways:
                    _dcp_async(bench, where, folder, way)
        dist.barrier(world.checkpoint_group)
        if run.env.rank == 0:
            subprocess.run(["rm", "-rf", str(folder)], check=False)
    if run.env.rank == 0:
        _print(bench, training)
    dist.barrier(world.checkpoint_group)


# -- the ways --------------------------------------------------------------------------------------


def _fsdpq(bench: Bench, where: str, folder: Path) -> None:
    from orchestrator.trainer.metrics import Console
    from orchestrator.trainer.saver import Saver

    training = bench.training
    env = replace(bench.run.env, checkpoints=folder)
    run = Run(env, bench.run._board)
    run.resume()
    quiet = Console(quiet=env.rank != 0)
    saver = Saver(run, training.state, training.spec.checkpoint, quiet, timeout_s=300)
    began = time.perf_counter()
    saver.prepare()
    planned_s = time.perf_counter() - began
    assert saver.behind is not None, "no saves in the background here"
    problem = saver.behind.ready()
    assert not problem, problem
    bench.together(0)  # all are ready: that one rank waits for another is no cost of the save
    if env.rank == 0:
        ready_s = time.perf_counter() - began
        print(f"prepared: planned in {planned_s:.2f} s, memory and writer after {ready_s:.2f} s")
    prints: dict[int, list[int]] = {}

    def begin() -> Callable[[], bool]:
        prints[training.state.step] = wanted
        saver.save_soon()
        return lambda: not run._saves.busy

    def check() -> str:
        run.settle()
        return _compare(bench, run, prints)

    wanted = _prints(training)
    bench.measure("fsdpq, first", where, begin, check if where == "disk" else lambda: "-")
    if where == "memory":
        wanted = _prints(training)
        bench.measure("fsdpq", where, begin)
        wanted = _prints(training)
        begin()
        bench.step()
        wanted = _prints(training)
        bench.measure("fsdpq, with another under way", where, begin, check)
    saver.close()


def _compare(bench: Bench, run: Run, prints: dict[int, list[int]]) -> str:
    """Return whether the published checkpoints hold what was there when they were asked for."""
    found = []
    for step, wanted in prints.items():
        path = run.env.checkpoints / f"step-{step}"
        if path.is_dir():
            found.append(_loaded(bench.training, path) == wanted)
    prints.clear()
    worst = bench.together(float(not all(found)))
    return f"{len(found)} compared: " + ("DIFFERENT" if worst or not found else "equal")


def _loaded(training: Training, path: Path) -> list[int]:
    """Return the fingerprints of a checkpoint, loaded with DCP alone."""
    import torch
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    model, optim = get_state_dict(training.state.model, training.state.optimizer)
    tensors = {"model": model, "optim": {"state": optim["state"]}}
    with torch.no_grad():
        empty = _map(lambda tensor: torch.full_like(tensor, 0), tensors)
    load({"app": empty}, checkpoint_id=path, process_group=training.world.checkpoint_group)
    return _prints_of(empty)


def _prints(training: Training) -> list[int]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optim = get_state_dict(training.state.model, training.state.optimizer)
    return _prints_of({"model": model, "optim": {"state": optim["state"]}})


def _prints_of(tensors: dict[str, Any]) -> list[int]:
    """Return an exact sum over the bits of each of this rank's tensors."""
    import torch
    from torch.distributed.tensor import DTensor

    found: list[Any] = []

    def note(tensor: Any) -> Any:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        bits = local.detach().contiguous().flatten().view(torch.uint8).view(torch.int32)
        weights = torch.arange(1, bits.numel() + 1, device=bits.device, dtype=torch.int32)
        found.append((bits * weights).sum(dtype=torch.int64))  # the order counts, too
        return tensor

    _map(note, tensors)
    return [int(value) for value in found]


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return function(value)
    return {key: _map(function, item) for key, item in value.items()}


def _dcp_sync(bench: Bench, where: str, folder: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    state = bench.training.state

    def begin() -> Callable[[], bool]:
        path = bench.folder(folder)
        save({"app": state}, checkpoint_id=path, process_group=state.world.checkpoint_group)
        return lambda: True

    bench.measure("dcp.save", where, begin)


def _dcp_async(bench: Bench, where: str, folder: Path, way: str) -> None:
    import torch
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

    state, gpu = bench.training.state, torch.cuda.is_available()
    options: dict[str, Any] = {}
    if way == "process":
        options = {
            "async_checkpointer_type": AsyncCheckpointerType.PROCESS,
            "async_stager": DefaultStager(StagingOptions(gpu, True, True, gpu)),
        }
    staged: list[Any] = []

    def wait(*_: Any) -> None:
        for one in staged:
            one.result()

    hook = state.optimizer.register_step_pre_hook(wait)

    def begin() -> Callable[[], bool]:
        path, group = bench.folder(folder), state.world.checkpoint_group
        found: Any = async_save({"app": state}, checkpoint_id=path, process_group=group, **options)
        if way == "process":
            staged.append(found.staging_completion)
        upload = getattr(found, "upload_completion", found)
        return lambda: bool(upload.done())

    name = "dcp.async_save" + (", process, pinned, staged aside" if way == "process" else "")
    bench.measure(name, where, begin)
    hook.remove()


# -- the end ---------------------------------------------------------------------------------------


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _print(bench: Bench, training: Training) -> None:
    import torch

    from tests.gpu.preempted import gpu_names

    gib = sum(p.numel() for p in training.model.parameters()) * 12 / 2**30
    about = {
        "gpus": gpu_names(),
        "torch": torch.__version__,
        "parameters": training.num_parameters,
        "state_gib": round(gib, 2),
        "step_s": round(bench.step_s, 4),
        "writers": bench.args.writers,
    }
    for key, value in about.items():
        print(f"| {key} | {value} |")
    print("| way | where | blocked s | next step + s | complete after s | steps then | slower | |")
    print("|---|---|---|---|---|---|---|---|")
    for c in bench.costs:
        slower = "-" if c.slower is None else f"{c.slower:+.1%}"
        print(
            f"| {c.way} | {c.where} | {c.blocked_s:.3f} | {c.next_step_extra_s:+.3f} |"
            f" {c.done_s:.1f} | {c.steps_meanwhile} | {slower} | {c.sound} |"
        )
    if bench.args.out:
        content = {**about, "saves": [asdict(cost) for cost in bench.costs]}
        bench.args.out.write_text(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
