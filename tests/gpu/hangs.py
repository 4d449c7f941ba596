"""Let a rank hang in front of NCCL's collectives, and see who is named and how soon it goes on.

    python -m tests.gpu.hangs [--hang-after 75] [--runs DIR] [--out FILE]

Two ranks of this machine train under the run's real scripts, with a watcher beside them. Rank 1
stops arriving; the others wait inside FSDP's collectives. Prints a table for RESULTS.md: how soon
the rank is named, the attempt ended and the next one trains, what the flight recorders hold, and
what nvidia-smi says meanwhile. Exits with the number of expectations that did not hold. On a
machine without a GPU the ranks use gloo, which is how the script itself is tried.
"""

import argparse
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from orchestrator.monitor.gpus import _QUESTIONS
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.runstore import store
from tests.gpu.preempted import FSDPQ, fsdpq, gpu_names, metrics, nccl_version, wait

RUN = "hung"
LIMIT_S = 10
HANG = {"min_s": LIMIT_S, "factor": 3, "start_s": 120, "save_s": 60}
SCRIPT = Path(__file__).with_name("hanging.py")


def job(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the job file; the script is a copy in ``folder``, so that little is kept with it."""
    folder.mkdir(exist_ok=True)
    gpus = torch.cuda.is_available()
    size = ["--width", 4096, "--batch", 131072] if gpus else ["--width", 64, "--batch", 32]
    words = ["--hang-after", args.hang_after, "--steps-after", args.steps_after, *size]
    return {
        "name": RUN,
        "site": "local",
        "gpus_per_node": torch.cuda.device_count() or 2,
        "script": str(shutil.copy(SCRIPT, folder)),
        "args": [str(word) for word in (*words, "--pause", 0 if gpus else 0.1)],
        "workdir": str(folder),
        "hang": HANG,
        **({} if args.preflight else {"preflight": False}),
    }


@contextmanager
def watcher(runs: Path) -> Iterator[None]:
    """Let `fsdpq watch` look after the run meanwhile."""
    argv = [*FSDPQ, "watch", RUN, "--every", "1", "--runs", str(runs)]
    with subprocess.Popen(argv) as process:
        try:
            yield
        finally:
            process.kill()


def smi() -> list[str]:
    """Return what nvidia-smi answers to the monitor's question, word for word."""
    try:
        done = subprocess.run(_QUESTIONS[0], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return done.stdout.splitlines()


def flight_record(path: Path) -> dict[str, Any]:
    """Return what the flight recorder of a rank holds, in short."""
    # Written by this machine's own ranks a moment ago.
    record = pickle.loads(path.read_bytes())
    entries = record.get("entries", [])
    keys = ("pg_id", "collective_seq_id", "profiling_name", "state", "output_sizes")
    return {
        "bytes": path.stat().st_size,
        "version": record.get("version"),
        "pg_status": record.get("pg_status"),
        "entries": len(entries),
        "states": Counter(
            f"{entry.get('profiling_name')} {entry.get('state')}" for entry in entries
        ),
        "last": [{key: entry.get(key) for key in keys} for entry in entries[-3:]],
    }


def drill(args: argparse.Namespace, runs: Path) -> dict[str, Any]:
    """Run it, and return what was seen meanwhile."""
    path = runs / "job.yaml"
    path.write_text(json.dumps(job(args, runs / "program")))  # JSON is YAML
    fsdpq(runs, "submit", str(path))
    with watcher(runs):
        wait(runs, RUN, lambda s: (s["step"] or 0) >= 5, timeout_s=120)
        wait(runs, RUN, lambda s: _stepped(runs, args.hang_after * 0.8), timeout_s=args.hang_after)
        seen: dict[str, Any] = {"smi_training": smi(), "report_training": _report(runs)}
        first = wait(runs, RUN, lambda s: s["hang"], timeout_s=args.hang_after + 60)
        seen["first_words"], seen["suspected_at"] = first["hang"], time.time()
        # In vain where nobody is named: then the attempt is ended all the same.
        named = wait(runs, RUN, lambda s: _named(s) or len(s["attempts"]) > 1, timeout_s=90)
        seen |= {"words": named["hang"], "named_at": time.time(), "smi_hanging": smi()}
        wait(runs, RUN, lambda s: _recorded(runs) or len(s["attempts"]) > 1, timeout_s=90)
        seen["report_hanging"] = _report(runs)
        seen["status"] = wait(runs, RUN, lambda s: s["state"] == "finished", timeout_s=180)
    return seen


def _named(status: dict[str, Any]) -> bool:
    why = status["hang"] or ""
    return "rank 1 " in why and "load_batch" in why


def _recorded(runs: Path) -> bool:
    ranks = (_report(runs) or {}).get("ranks", [])
    return len(ranks) == 2 and all(rank["collectives"] for rank in ranks)


def _stepped(runs: Path, seconds: float) -> bool:
    lines = metrics(runs, RUN)
    return bool(lines[-1]["at"] - lines[0]["at"] >= seconds)


def _report(runs: Path) -> Any:
    return store.read_json(RunLayout(runs / RUN).attempt(1).nodes / "0.json")


def figures(runs: Path, seen: dict[str, Any]) -> dict[str, Any]:
    """Return the figures, in seconds since the last step of the first attempt."""
    layout = RunLayout(runs / RUN)
    one, lines = layout.attempt(1), metrics(runs, RUN)
    last = [line for line in lines if line["attempt"] == 1][-1]
    first = next(line for line in lines if line["attempt"] == 2)
    restarts = [event["at"] for event in store.events(layout) if event["kind"] == "restart"]
    moments = {
        "stacks": max(_times(one.stacks, "rank-*.txt"), default=None),
        "flight_recorder": max(_times(one.root / "nccl", "flight-*"), default=None),
        "suspected": seen["suspected_at"],
        "named": seen["named_at"],
        "restart": restarts[0] if restarts else None,
        "attempt_2": (store.read_json(layout.attempt(2).root / "start.json") or {})["started_at"],
        "first_new_step": first["at"] - first["step_s"],
    }
    return {
        "last_step": last["step"],
        "first_new_step": first["step"],
        "step_s": sorted(line["step_s"] for line in lines)[len(lines) // 2],
        "after_s": {key: at and round(at - last["at"], 1) for key, at in moments.items()},
        "records": {path.name: flight_record(path) for path in _records(one)},
        "stacks": {path.name: path.stat().st_size for path in sorted(one.stacks.glob("*.txt"))},
    }


def _times(folder: Path, pattern: str) -> list[float]:
    return [path.stat().st_mtime for path in folder.glob(pattern)]


def _records(attempt: AttemptLayout) -> list[Path]:
    return sorted((attempt.root / "nccl").glob("flight-recorder-rank-*"))


def expectations(seen: dict[str, Any], found: dict[str, Any]) -> dict[str, bool]:
    """Return what should have come true, and whether it did."""
    ranks = (seen["report_hanging"] or {}).get("ranks", [])
    collectives = [rank["collectives"] for rank in ranks]
    rows = seen["status"]["attempts"]
    return {
        "rank 1 is named, and where it stands": _named({"hang": seen["words"]}),
        "stacks of both ranks": len(found["stacks"]) == 2,
        "flight records of both ranks": len(found["records"]) == 2,
        "rank 1 enqueued fewer": len(collectives) == 2 and _fewer(*collectives),
        "the cause is a hang": rows[0]["cause"] == "hang",
        "two attempts": len(rows) == 2,
        "clocks of both GPUs": not torch.cuda.is_available()
        or all(rank["gpu"] and rank["gpu"]["sm_mhz"] for rank in ranks),
    }


def _fewer(one: dict[str, int], other: dict[str, int]) -> bool:
    return any(other[group] < one[group] for group in one.keys() & other.keys())


def main() -> None:
    """Run, print, and say how much went otherwise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang-after", type=float, default=75)
    parser.add_argument("--steps-after", type=int, default=40)
    parser.add_argument("--no-preflight", dest="preflight", action="store_false")
    parser.add_argument("--out", type=Path, help="write all that was seen as JSON")
    parser.add_argument("--runs", type=Path, help="keep the run directories here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = args.runs or Path(folder)
        runs.mkdir(parents=True, exist_ok=True)
        seen = drill(args, runs)
        found = figures(runs, seen)
    held = expectations(seen, found)
    versions = {"gpus": gpu_names(), "torch": torch.__version__, "nccl": nccl_version()}
    everything = {**versions, **seen, **found, "held": held}
    if args.out:
        args.out.write_text(json.dumps(everything, indent=2, default=str))
    for key, value in everything.items():
        print(f"| {key} | {value} |")
    sys.exit(list(held.values()).count(False))


if __name__ == "__main__":
    main()
