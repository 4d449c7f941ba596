"""What a save costs the training: fsdpq's in the background against those of DCP, in one run.

    python -m tests.gpu.saving [--out DIR] [--seconds 80] [--layers 16] [--hidden 2048]
        [--disk DIR] [--only fsdpq,process,sync,async] [--where memory,disk] [--saves 1]

Trains a Llama on all GPUs of this machine and saves it to memory (/dev/shm) and to disk. For each
way it prints for how long the call blocked, how much longer the next step took, when the
checkpoint was complete, and how much slower the steps were meanwhile. fsdpq's checkpoints are
loaded with plain `dcp.load` and compared, bit by bit, with the state at the moment of the call,
also where one was asked for while another was under way. Saves are begun until --seconds are over,
the most telling ones first; each is kept in DIR as it is measured. Without a GPU it runs two
workers with gloo and a tiny model.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from orchestrator import runtime
from orchestrator.runtime import Run
from tests.gpu.fingerprints import loaded, prints
from tests.gpu.results import Record, Results, about, about_lines, markdown_table

if TYPE_CHECKING:
    from orchestrator.spec.train import TrainSpec
    from orchestrator.trainer.training import Training

WAYS = ("fsdpq", "process", "sync", "async")


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
    parser.add_argument("--where", default="memory,disk")
    parser.add_argument("--saves", type=int, default=1, help="of fsdpq's, after the first")
    parser.add_argument("--seconds", type=float, default=80, help="begin no save after that")
    parser.add_argument("--out", type=Path, help="a folder for the rows, as they are measured")
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
        self.step_s = 0.0
        self.results: Results | None = None
        self._began = time.monotonic()
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

    def late(self) -> bool:
        """Return whether no time is left for another save; the same on all ranks."""
        return bool(self.together(float(time.monotonic() - self._began > self.args.seconds)))

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
        try:
            sound = check()
        except Exception as problem:  # of DCP's own ways, whatever theirs raises
            sound = f"failed: {str(problem).splitlines()[0][:80]}"
        cost = Cost(way, where, blocked_s, extra_s, done_s, len(among), slower, sound)
        if self.results is not None:
            self.results.add(asdict(cost))

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
    bench.step_s = bench.together(mean(bench.step() for _ in range(args.steps)))
    if run.env.rank == 0:
        bench.results = Results(args.out, "saving", _markdown(bench))
    ways = args.only.split(",")
    places = {"memory": args.memory, "disk": args.disk}
    for where in args.where.split(","):
        place = places[where]
        # One folder for all ranks.
        box = [tempfile.mkdtemp(prefix="fsdpq-saving-", dir=place) if run.env.rank == 0 else None]
        dist.broadcast_object_list(box, group=world.checkpoint_group)
        folder = Path(str(box[0]))
        for way in WAYS:
            if way in ways and not bench.late():
                _save(bench, way, where, folder)
        dist.barrier(world.checkpoint_group)
        if run.env.rank == 0:
            subprocess.run(["rm", "-rf", str(folder)], check=False)
    if bench.results is not None:
        print(bench.results.markdown)
    dist.barrier(world.checkpoint_group)


# -- the ways --------------------------------------------------------------------------------------


def _save(bench: Bench, way: str, where: str, folder: Path) -> None:
    if way == "fsdpq":
        _fsdpq(bench, where, folder)
    elif way == "sync":
        _dcp_sync(bench, where, folder)
    elif where == "disk":  # memory's bandwidth is no limit to these: once is enough
        _dcp_async(bench, where, folder, way)


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
    wanted_of: dict[int, list[int]] = {}

    def begin() -> Callable[[], bool]:
        wanted_of[training.state.step] = wanted
        saver.save_soon()
        return lambda: not run._saves.busy

    def check() -> str:
        run.settle()
        return _compare(bench, run, wanted_of)

    checked = check if where == "disk" else lambda: "-"
    wanted = prints(training)
    bench.measure("fsdpq, first", where, begin, checked)
    for _ in range(bench.args.saves):
        wanted = prints(training)
        bench.measure("fsdpq", where, begin, checked)
    if where == "memory":
        wanted = prints(training)
        begin()
        bench.step()
        wanted = prints(training)
        bench.measure("fsdpq, with another under way", where, begin, check)
    saver.close()


def _compare(bench: Bench, run: Run, wanted_of: dict[int, list[int]]) -> str:
    """Return whether the published checkpoints hold what was there when they were asked for."""
    found = []
    for step, wanted in wanted_of.items():
        path = run.env.checkpoints / f"step-{step}"
        if path.is_dir():
            found.append(loaded(bench.training, path) == wanted)
    wanted_of.clear()
    worst = bench.together(float(not all(found)))
    return f"{len(found)} compared: " + ("DIFFERENT" if worst or not found else "equal")


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
    uploads: list[Any] = []

    def wait(*_: Any) -> None:
        for one in staged:
            one.result()

    hook = state.optimizer.register_step_pre_hook(wait)

    def begin() -> Callable[[], bool]:
        path, group = bench.folder(folder), state.world.checkpoint_group
        found: Any = async_save({"app": state}, checkpoint_id=path, process_group=group, **options)
        if way == "process":
            staged.append(found.staging_completion)
        uploads.append(getattr(found, "upload_completion", found))
        return lambda: bool(uploads[-1].done())

    def check() -> str:
        uploads[-1].result()
        return "-"

    if way == "process":
        # The first one starts the process.
        bench.measure("dcp.async_save, process, pinned, staged aside, first", where, begin, check)
        if not bench.late():
            bench.measure("dcp.async_save, process, pinned, staged aside", where, begin, check)
    else:
        bench.measure("dcp.async_save", where, begin, check)
    hook.remove()


# -- the end ---------------------------------------------------------------------------------------


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


_HEADS = (
    "way", "where", "blocked, s", "next step, + s", "complete after, s", "steps then", "slower",
    "content",
)  # fmt: skip


def _markdown(bench: Bench) -> Callable[[Sequence[Record]], str]:
    """Return what makes Markdown of the rows so far."""
    ran_on = about()
    parameters = bench.training.num_parameters
    told = (
        f"{parameters:,} parameters, a state of {parameters * 12 / 2**30:.2f} GiB;"
        f" a step takes {bench.step_s:.4f} s; {bench.args.writers} files a rank."
    )

    def text(rows: Sequence[Record]) -> str:
        table = markdown_table(_HEADS, [_cells(row) for row in rows])
        return "\n".join([*about_lines(ran_on), told, "", *table])

    return text


def _cells(row: Record) -> list[object]:
    return [
        row["way"],
        row["where"],
        f"{row['blocked_s']:.3f}",
        f"{row['next_step_extra_s']:+.3f}",
        f"{row['done_s']:.1f}",
        row["steps_meanwhile"],
        "-" if row["slower"] is None else f"{row['slower']:+.1%}",
        row["sound"],
    ]


if __name__ == "__main__":
    main()
