"""The examples of jobs/ on the GPUs of one machine: stopped by a notice, and brought back.

    python -m tests.gpu.own_scripts [--steps 60] [--stop-at 10] [--only toy,hf] [--out DIR]

Each script is started with torchrun, one worker a GPU (two without a GPU), is given a notice once
it has done --stop-at steps, and is started again. The table says how many steps were lost or done
twice, and whether the loss is that of a run without a notice (with --straight, which costs a third
start). What is not installed is left out by name. torchtitan (0.3) is
given model and text by `tests/slurm/programs/titan_tiny.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu.results import Record, Results, about, about_lines, markdown_table, version

ROOT = Path(__file__).parents[2]
TITAN = [str(ROOT / "tests/slurm/programs/titan_tiny.py"), str(ROOT / "jobs/torchtitan_run.py")]
PROGRAMS = {
    "toy": ("torch", [str(ROOT / "jobs/toy_fsdp2.py"), "STEPS"]),
    "hf": ("accelerate", [str(ROOT / "jobs/hf_trainer.py"), "STEPS"]),
    "lightning": ("lightning", [str(ROOT / "jobs/lightning_fit.py"), "STEPS"]),
    "torchtitan": (
        "torchtitan",
        [
            *TITAN,
            "--module=titan_tiny",
            "--config=tiny",
            "--debug.seed=7",
            "--training.steps=STEPS",
        ],
    ),
}
_PATIENCE_S = 300.0
COLUMNS = ("script", "attempts", "stopped after", "lost", "twice", "resumed in s", "max loss diff")


class Run:
    """A run directory, and the attempts that were started in it."""

    def __init__(self, root: Path, argv: list[str], *, workers: int) -> None:
        self.root, self.argv, self.workers = root, argv, workers
        self.notice = root / "notice"
        root.mkdir(parents=True)

    def start(self, attempt: int) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        with (self.root / f"log-{attempt}.txt").open("wb") as log:
            return subprocess.Popen(
                [*launcher, f"--nproc-per-node={self.workers}", *self.argv],
                cwd=self.root,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
                    "OMP_NUM_THREADS": "1",
                    "FSDPQ_RUN_DIR": str(self.root),
                    "FSDPQ_ATTEMPT": str(attempt),
                    "FSDPQ_NOTICE_FILE": str(self.notice),
                },
            )

    def lines(self) -> list[dict[str, Any]]:
        try:
            text = (self.root / "metrics.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def finish(self, attempt: int, process: subprocess.Popen[bytes]) -> None:
        if process.wait(_PATIENCE_S) != 0:
            log = (self.root / f"log-{attempt}.txt").read_text(errors="replace")
            sys.exit(f"{self.argv} failed:\n{log[-4000:]}")

    def stop_at(self, step: int, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while process.poll() is None and time.monotonic() < deadline:
            if any(line["step"] >= step for line in self.lines()):
                self.notice.write_text("USR2\n")
                return
            time.sleep(0.02)


def measure(name: str, folder: Path, args: argparse.Namespace, *, workers: int) -> Record:
    argv = [word.replace("STEPS", str(args.steps)) for word in PROGRAMS[name][1]]
    run = Run(folder / name, argv, workers=workers)
    first = run.start(1)
    run.stop_at(args.stop_at, first)
    run.finish(1, first)
    run.notice.unlink(missing_ok=True)
    began = time.time()
    run.finish(2, run.start(2))
    lines = run.lines()
    steps = [line["step"] for line in lines]
    stopped = max(line["step"] for line in lines if line["attempt"] == 1)
    resumed = next((line["at"] for line in lines if line["attempt"] == 2), None)
    return {
        "script": name,
        "attempts": len({line["attempt"] for line in lines}),
        "stopped after": stopped,
        "lost": len(set(range(1, args.steps + 1)) - set(steps)),
        "twice": len(steps) - len(set(steps)),
        "resumed in s": round(resumed - began, 1) if resumed else None,
        "max loss diff": straight_diff(name, folder, argv, lines, workers) if args.straight else "",
    }


def straight_diff(
    name: str, folder: Path, argv: list[str], lines: list[dict[str, Any]], workers: int
) -> str:
    """Return by how much the loss differs at most from that of a run that was left alone."""
    run = Run(folder / f"{name}-straight", argv, workers=workers)
    run.finish(1, run.start(1))
    alone = {line["step"]: line["loss"] for line in run.lines()}
    return f"{max(abs(line['loss'] - alone[line['step']]) for line in lines):.2g}"


def missing(package: str) -> str:
    """Return why ``package`` cannot be used; empty if it can."""
    found = version(package)
    if not found:
        return f"{package} is not installed"
    if package == "torchtitan" and not found.startswith("0.3."):
        return f"it is torchtitan {found}, and the tiny model is written for 0.3"
    return ""


def table(rows: Sequence[Record]) -> list[str]:
    return markdown_table(COLUMNS, [[row[name] for name in COLUMNS] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stop-at", type=int, default=10)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--straight", action="store_true", help="compare with a run left alone")
    parser.add_argument("--out", type=Path, help="a folder for the rows, as they are measured")
    args = parser.parse_args()
    import torch

    workers = torch.cuda.device_count() or 2
    head = about_lines(about())
    results = Results(args.out, "own_scripts", lambda rows: "\n".join([*head, *table(rows)]))
    wanted = [name for name in PROGRAMS if not args.only or name in args.only.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            if lacks := missing(PROGRAMS[name][0]):
                print(f"{name}: left out, {lacks}", flush=True)
                continue
            results.add(measure(name, Path(folder), args, workers=workers))
    print(results.markdown)


if __name__ == "__main__":
    main()
