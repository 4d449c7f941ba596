"""Real training under torchrun: two workers, gloo, a model of two small layers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 12
SAMPLES_PER_STEP = 8
TRAIN: dict[str, Any] = {
    "model": {
        "config": {
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 256,
            "attention_dropout": 0.1,  # so that the random generators count
        },
        "attention": "eager",
    },
    "data": {"seq_len": 16},
    "steps": STEPS,
    "global_batch": SAMPLES_PER_STEP,
    "micro_batch": 2,
    "lr": 1e-3,
    "warmup_steps": 2,
    "precision": "fp32",
    "checkpoint": {"every_steps": 4, "keep_last": 3},
    "timeouts_s": {"init": 120, "step": 60, "vote": 60},
}


@dataclass
class Job:
    """A run directory and the processes that were started for it."""

    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def configure(self, **changes: Any) -> None:
        """Write train.json: TRAIN with ``changes``; a dict among them changes only its keys."""
        config = json.loads(json.dumps(TRAIN))
        config["data"]["text_files"] = [str(self.root.parent / "text")]
        for key, value in changes.items():
            if isinstance(value, dict):
                config[key] = {**config.get(key, {}), **value}
            else:
                config[key] = value
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "train.json").write_text(json.dumps(config))

    def start(
        self, attempt: int, *, workers: int = 2, program: str = "", **variables: str
    ) -> subprocess.Popen[str]:
        what = (
            [program] if program else ["-m", "orchestrator.trainer", str(self.root / "train.json")]
        )
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        process = subprocess.Popen(
            [*argv, "--signals-to-handle=SIGINT", f"--nproc-per-node={workers}", *what],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "FSDPQ_RUN_DIR": str(self.root),
                "FSDPQ_ATTEMPT": str(attempt),
                "FSDPQ_NOTICE_FILE": str(self.notice(attempt)),
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, attempt: int, *, code: int = 0, **options: Any) -> str:
        """Start an attempt and wait for its end; return what it printed."""
        process = self.start(attempt, **options)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == code, out
        return out

    def notice(self, attempt: int) -> Path:
        return self.root / f"notice-{attempt}"

    def wait_for_step(self, step: int, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            if any(line["step"] >= step for line in self.lines()):
                return
            time.sleep(0.02)
        pytest.fail(f"step {step} was not reached: {process.communicate()[0]}")

    def lines(self) -> list[dict[str, Any]]:
        path = self.root / "metrics.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]]

    def curve(self) -> dict[int, dict[str, Any]]:
        """Return each step's line; of steps that were done twice, the later one."""
        return {line["step"]: line for line in self.lines()}

    def status(self, attempt: int) -> dict[str, Any]:
        return self.read(f"attempts/{attempt}/status.json")

    def read(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.root / name).read_text())
        return content


MakeJob = Callable[..., Job]


def write_text(folder: Path) -> None:
    """Write two files of text to train on."""
    folder.mkdir()
    words = [f"{n} squared is {n * n}.\n" for n in range(150)]
    (folder / "a.txt").write_text("".join(words[:70]))
    (folder / "b.txt").write_text("".join(words[70:]))


def same_curve(a: Job, b: Job, *, steps: range = range(1, STEPS + 1)) -> None:
    """Fail unless both have the same numbers at these steps, to the last bit."""
    keys = ("loss", "grad_norm", "lr", "samples")
    found, wanted = a.curve(), b.curve()
    for step in steps:
        for key in keys:
            assert found[step][key] == wanted[step][key], (step, key)


def wait_until_gone(job: Job) -> None:
    """Wait until no worker of the job writes any more: they die with their torchrun."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(uses(path, job.root) for path in Path("/proc").glob("[0-9]*")):
            return
        time.sleep(0.05)
    pytest.fail("workers outlived their torchrun")


def uses(process: Path, root: Path) -> bool:
    """Whether a process (a folder of /proc) lives and belongs to this run directory."""
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return (
            state != "Z"
            and f"FSDPQ_RUN_DIR={root}\0".encode() in (process / "environ").read_bytes()
        )
    except OSError:
        return False
