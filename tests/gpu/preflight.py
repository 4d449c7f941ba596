"""The pre-flight on the GPUs of this machine: fit, with a GPU in use, and with a GPU kept busy.

    python -m tests.gpu.preflight [--raw]

Prints what each case found, how long it took, and what it should have been; exits with the number
of cases that went otherwise. --raw prints what nvidia-smi says here as well. One GPU will do; the
all-reduce is worth more on two.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from orchestrator.monitor.gpus import _QUESTIONS
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.smi import HEALTH, IDENTITY, PROCESSES, ROWS, query
from orchestrator.spec.preflight import CERTAIN, CHECKS

# Holds memory of the last GPU, or keeps it at work as well, until its input ends.
HOLD = """
import sys, threading, torch
last = torch.device("cuda", torch.cuda.device_count() - 1)
held = torch.ones(8 << 30, dtype=torch.uint8, device=last)
a = torch.ones((8192, 8192), dtype=torch.bfloat16, device=last)
torch.cuda.synchronize(last)
print("ready", flush=True)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
while not ended.wait(0 if "busy" in sys.argv else 0.1):
    if "busy" in sys.argv:
        for _ in range(50):
            a @ a
        torch.cuda.synchronize(last)
"""


@contextmanager
def somebody_else(*words: str) -> Iterator[None]:
    """Let another process use the last GPU meanwhile."""
    argv = [sys.executable, "-c", HOLD, *words]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline().strip() == "ready"
        yield
        process.communicate("")


def check(checks: Sequence[str]) -> dict[str, Any]:
    """Return what the pre-flight finds, with its exit code and its seconds."""
    count = torch.cuda.device_count()
    expected = Expected(checks=tuple(checks), workers=count, gpus=count)
    with tempfile.TemporaryDirectory() as name:
        run = Path(name)
        (run / "checkpoints").mkdir()
        (run / "preflight.json").write_text(json.dumps(expected.to_json()))
        environment = {"FSDPQ_RUN_DIR": name, "FSDPQ_ATTEMPT_DIR": name, "FSDPQ_LOCAL_DIR": name}
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.preflight"],
            env={**os.environ, **environment},
            check=False,
        )
        took_s = round(time.monotonic() - began, 2)
        found = json.loads((run / "preflight" / "node-0.json").read_text())
        return {**found, "code": done.returncode, "took_s": took_s}


def show(case: str, found: dict[str, Any], *, wanted: set[str]) -> bool:
    """Print a case, and return whether it found problems of the checks ``wanted`` and no other."""
    got = {problem["check"] for problem in found["problems"]}
    well = got == wanted and found["code"] == (76 if wanted else 0)
    print(json.dumps({"case": case, "as_wanted": well, **found}, indent=2), flush=True)
    return well


def raw() -> None:
    """Print what nvidia-smi says on this machine."""
    questions = [
        query("gpu", IDENTITY + HEALTH),
        query("gpu", ["clocks_throttle_reasons.active"]),
        query("gpu", ["no_such_field"]),
        query("remapped-rows", ROWS),
        query("compute-apps", PROCESSES),
        ["nvidia-smi", "nvlink", "--status"],
        *map(list, _QUESTIONS),
        ["nvidia-smi", "--version"],
    ]
    for argv in questions:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        print(f"$ {' '.join(argv)}\n{done.stdout}{done.stderr}[exit code {done.returncode}]")


def main() -> None:
    """Run the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--raw", action="store_true")
    if parser.parse_args().raw:
        raw()
    several = torch.cuda.device_count() > 1
    well = [
        show("fit, what is on by default", check(CERTAIN.checks), wanted=set()),
        show("fit, everything but the bandwidth", check(CHECKS[:-1]), wanted=set()),
    ]
    with somebody_else():
        well.append(show("memory in use", check(CHECKS[:-2]), wanted={"memory"}))
    with somebody_else("busy"):
        slow = {"all_reduce"} if several else set()
        well.append(show("kept busy", check(["gpus", "all_reduce"]), wanted=slow))
    sys.exit(well.count(False))


if __name__ == "__main__":
    main()
