"""What `fsdpq plan` predicts, beside what the trainer's own parts take on the GPUs of this machine.

    python -m tests.gpu.planner [--only NAME,...] [--budget 150] [--append tests/gpu/RESULTS.md]

One process a GPU, two at most; all configurations one after the other in the same processes, three
steps each, with random weights that are drawn on the device. Prints a table: what PyTorch's tensors
took at most (`max_memory_allocated`), what its allocator took (`max_memory_reserved`), what the
device had in use besides (CUDA and NCCL), each beside its prediction, and the time of a step. On a
machine without a GPU it runs tiny models with gloo, which is how the script itself is tried.
Configurations that this version of the trainer does not know are named, and left out.
"""

import argparse
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

from orchestrator.errors import SpecError
from orchestrator.planner.families import shape_of
from orchestrator.planner.gpus import find
from orchestrator.planner.memory import memory
from orchestrator.planner.workload import workload
from orchestrator.runtime.environment import read_environment
from orchestrator.trainer.corpus import open_corpus
from orchestrator.trainer.training import build, train_step
from orchestrator.trainer.world import fix_arithmetic
from tests.gpu.planner_cases import CASES, Case
from tests.gpu.planner_parts import join, leave, randomise, world_of
from tests.gpu.planner_table import report

Row = dict[str, Any]


def measured(case: Case, rank: int, world_size: int, folder: Path) -> Row:
    """Return what one configuration took, on this rank."""
    on_gpu = torch.cuda.is_available()
    spec = case.spec(world_size, folder / "text", tiny=not on_gpu)
    fix_arithmetic(spec)
    torch.use_deterministic_algorithms(spec.deterministic)
    world = world_of(read_environment(os.environ), spec)
    corpus = open_corpus(spec.data.text_files, seq_len=spec.data.seq_len)
    training = build(spec, world, corpus, fresh=False)
    randomise(training.model)
    _reset()
    times = []
    for _ in range(case.steps):
        began = time.perf_counter()
        train_step(training)
        times.append(time.perf_counter() - began)
    row = _memory_now() if on_gpu else {}
    del training
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


def predicted(case: Case, world_size: int, *, tiny: bool) -> Row:
    """Return what the planner says of a configuration."""
    spec = case.spec(world_size, Path("text"), tiny=tiny)
    shape = shape_of(spec.model.config or {})
    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "H200"
    said = memory(shape, workload(spec, shape, world_size=world_size), find(name))
    return {
        "parameters": shape.parameters,
        "allocated": said.allocated,
        "reserved": said.reserved,
        "context": said.context,
        "moment": said.moment,
    }


def work(folder: Path, names: list[str], budget_s: float) -> None:
    """Measure all configurations as one of the ranks, which writes a line for each."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    rank, world_size = join()
    began = time.perf_counter()
    with (folder / f"rows-{rank}.jsonl").open("w") as file:
        for name in names:
            # All ranks have to see the same clock, or one would wait for the others.
            late = torch.tensor(float(time.perf_counter() - began > budget_s))
            dist.all_reduce(late)
            try:
                row = {} if late else measured(CASES[name], rank, world_size, folder)
                trouble = "out of time" if late else ""
            except (SpecError, torch.cuda.OutOfMemoryError, ImportError) as problem:
                row, trouble = {}, f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
            file.write(json.dumps({"name": name, "trouble": trouble, **row}) + "\n")
            file.flush()
    leave()


def _start(
    folder: Path, rank: int, count: int, names: list[str], budget_s: float, port: int
) -> Any:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "FSDPQ_RUN_DIR": str(folder),
        "FSDPQ_ATTEMPT": "1",
        "OMP_NUM_THREADS": "1",
        # As the launcher sets it for every attempt.
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    argv = [sys.executable, "-m", "tests.gpu.planner", "--worker", str(folder)]
    argv += ["--only", ",".join(names), "--budget", str(budget_s)]
    return subprocess.Popen(argv, env=environment)


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _known(names: list[str], count: int) -> Iterator[tuple[str, str]]:
    """Yield the configurations, each with why this version cannot do it."""
    for name in names:
        try:
            CASES[name].spec(count, Path("text"), tiny=not torch.cuda.is_available())
        except ValueError as problem:
            text = str(problem)
            first = next((line.strip() for line in text.splitlines()[1:]), text)
            yield name, f"this version has no such key: {first}"
        else:
            yield name, ""


def measure(names: list[str], budget_s: float) -> list[Row]:
    """Run all configurations and return a row for each."""
    # Counts without a CUDA context in this process.
    count = min(torch.cuda.device_count(), 2) or 2
    known = dict(_known(names, count))
    wanted = [name for name, trouble in known.items() if not trouble]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "text").write_bytes(bytes(range(256)) * 4096)
        port = _port()
        ranks = [_start(folder, rank, count, wanted, budget_s, port) for rank in range(count)]
        codes = [process.wait() for process in ranks]
        rows: dict[str, list[Row]] = {}
        for file in sorted(folder.glob("rows-*.jsonl")):
            for line in file.read_text().splitlines():
                row = json.loads(line)
                rows.setdefault(row["name"], []).append(row)
    if any(codes):
        print(f"a rank ended with exit code {max(map(abs, codes))}; what was measured stands below")
    return [_row(name, rows.get(name, []), known[name], count) for name in names]


def _row(name: str, found: list[Row], trouble: str, count: int) -> Row:
    """Return the worst of all ranks beside the prediction."""
    trouble = trouble or next((row["trouble"] for row in found if row["trouble"]), "")
    if trouble or not found:
        return {"name": name, "trouble": trouble or "not reached"}
    worst = {
        key: max(row[key] for row in found)
        for key in ("allocated", "reserved", "context", "step_s", "total")
        if key in found[0]
    }
    tiny = not torch.cuda.is_available()
    return {
        "name": name,
        "trouble": "",
        "what": CASES[name].what,
        "predicted": predicted(CASES[name], count, tiny=tiny),
        "measured": worst,
    }


def main() -> None:
    """Measure, print the table, and add it to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--budget", type=float, default=150.0, help="seconds after start-up")
    parser.add_argument("--append", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if args.worker:
        work(args.worker, names, args.budget)
        return
    began = time.monotonic()
    text = report(measure(names, args.budget), gpu=_hardware(), took_s=time.monotonic() - began)
    print(text)
    if args.append:
        with args.append.open("a") as file:
            file.write(f"\n{text}")


def _hardware() -> str:
    count = torch.cuda.device_count()
    where = f"{min(count, 2)} x {torch.cuda.get_device_name(0)}" if count else "CPU, 2 ranks, gloo"
    return f"{where}, torch {torch.__version__}, transformers {transformers.__version__}"


if __name__ == "__main__":
    main()
