"""What `fsdpq plan` predicts, beside what the trainer's own parts take on the GPUs of this machine.

    python -m tests.gpu.planner [--out DIR] [--only NAME,... | --new] [--budget 230]

One process a GPU, two at most; all configurations one after the other in the same processes, three
steps each, with random weights that are drawn on the device. Prints a table: what PyTorch's tensors
took at most (`max_memory_allocated`), what its allocator took (`max_memory_reserved`), what the
device had in use besides (CUDA and NCCL), each beside its prediction, and the time of a step. It is
kept in DIR, configuration by configuration. On a machine without a GPU it runs tiny models with
gloo, which is how the script itself is tried. Configurations that this version of the trainer or
this machine cannot do are named, and left out.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from importlib import util
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.errors import SpecError
from orchestrator.runtime.environment import read_environment
from orchestrator.trainer.corpus import open_corpus
from orchestrator.trainer.evaluation import Evaluator
from orchestrator.trainer.training import build, train_step
from orchestrator.trainer.world import fix_arithmetic
from tests.gpu.planner_cases import CASES, NEW, Case, predicted
from tests.gpu.planner_parts import join, leave, randomise, start, world_of
from tests.gpu.planner_table import record, report
from tests.gpu.results import Results, about

Row = dict[str, Any]


def measured(case: Case, rank: int, world_size: int, folder: Path) -> Row:
    """Return what one configuration took, on this rank."""
    on_gpu = torch.cuda.is_available()
    spec = case.spec(world_size, folder / "text", tiny=not on_gpu)
    fix_arithmetic(spec)
    torch.use_deterministic_algorithms(spec.deterministic)
    torch.compiler.reset()  # after some blocks of other sizes it would compile no more
    world = world_of(read_environment(os.environ), spec)
    corpus = open_corpus(spec.data.text_files, seq_len=spec.data.seq_len)
    training = build(spec, world, corpus, fresh=False)
    randomise(training.model)
    _reset()
    evaluator = Evaluator.of(training, corpus)
    times = []
    for number in range(case.steps):
        began = time.perf_counter()
        train_step(training)
        times.append(time.perf_counter() - began)
        if evaluator is not None and number == 1:
            evaluator.measure(stop=lambda: False)
    row = _memory_now() if on_gpu else {}
    del training, evaluator
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    return {**row, "step_s": min(times[1:])}


def _reset() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _memory_now() -> Row:
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "context": total - free - torch.cuda.memory_reserved(),
        "total": total,
    }


def work(names: list[str], budget_s: float, out: Path | None) -> None:
    """Measure all configurations as one of the ranks; rank 0 keeps a row of each."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    rank, world_size = join()
    began = time.perf_counter()
    folder = Path(os.environ["FSDPQ_RUN_DIR"])
    results = Results(out, "planner", report(_hardware(world_size)))
    for name in names:
        trouble = unknown(name, world_size)
        if not trouble and _largest(time.perf_counter() - began) > budget_s:
            trouble = "no time was left"
        row = {} if trouble else measured_or_not(CASES[name], rank, world_size, folder)
        trouble = trouble or row.pop("trouble", "")
        if rank == 0:
            results.add(_row(name, row, trouble, world_size))
    if rank == 0:
        print(results.markdown, flush=True)
        print("", *record(results.rows), sep="\n", flush=True)
    leave()


def measured_or_not(case: Case, rank: int, world_size: int, folder: Path) -> Row:
    """Return the worst of all ranks, or `trouble`: the next one is measured all the same."""
    try:
        row = measured(case, rank, world_size, folder)
    except (SpecError, RuntimeError, ImportError) as problem:  # a lack of memory is the second
        row = {"trouble": f"{type(problem).__name__}: {str(problem).splitlines()[0]}"}
    if _largest(float("trouble" in row)):
        gc.collect()
        _reset()
        return {"trouble": row.get("trouble", "it failed on another rank")}
    return {key: _largest(value) for key, value in row.items()}


def _largest(value: float) -> float:
    """Return the largest ``value`` of all ranks."""
    box = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return float(box)


def unknown(name: str, world_size: int) -> str:
    """Return why this version cannot do a configuration; empty if it can."""
    try:
        spec = CASES[name].spec(world_size, Path("text"), tiny=not torch.cuda.is_available())
    except ValueError as problem:
        lines = str(problem).splitlines()
        return f"this version has no such key: {next(map(str.strip, lines[1:]), lines[0])}"
    if spec.fp8 != "off" and not util.find_spec("torchao"):
        return "torchao is not installed"
    slow = spec.compile and not torch.cuda.is_available()
    return "compiled on GPUs alone: a processor's compiler takes minutes" if slow else ""


def _row(name: str, row: Row, trouble: str, count: int) -> Row:
    """Return what was measured beside the prediction."""
    if trouble:
        return {"name": name, "trouble": trouble}
    return {
        "name": name,
        "trouble": "",
        "new": CASES[name].new,
        "what": CASES[name].what,
        "predicted": predicted(CASES[name], count, gpu=_gpu(), tiny=not torch.cuda.is_available()),
        "measured": row,
    }


def launch(folder: Path) -> int:
    """Start the ranks; return torchrun's exit code."""
    (folder / "text").mkdir()
    for number in range(512):  # a file is a document; several fall into a sequence
        (folder / "text" / f"{number:03}.txt").write_bytes(bytes(range(256)) * 8)
    return start("tests.gpu.planner", folder)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument(
        "--new",
        dest="only",
        action="store_const",
        const=",".join(NEW),
        help="what the planner has not met",
    )
    parser.add_argument("--budget", type=float, default=230.0, help="seconds after start-up")
    parser.add_argument("--out", type=Path, help="a folder for the rows, as they are measured")
    args = parser.parse_args()
    names = args.only.split(",")
    if wrong := set(names) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(wrong))}; there are {', '.join(CASES)}")
    if "RANK" in os.environ:
        work(names, args.budget, args.out if os.environ["RANK"] == "0" else None)
        return
    with tempfile.TemporaryDirectory() as made:
        sys.exit(launch(Path(made)))


def _gpu() -> str:
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "H200"


def _hardware(count: int) -> dict[str, str]:
    return {**about(), "ranks": str(count)}


if __name__ == "__main__":
    main()
