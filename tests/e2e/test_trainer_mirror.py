"""TensorBoard and Weights & Biases (offline) as they are: one curve, whatever the attempts did."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.trainings import ROOT, STEPS, Job

for package in ("tensorboard", "wandb"):
    pytest.importorskip(package, reason=f"the package {package} is not installed")

pytestmark = pytest.mark.e2e

KEY = "feedfacefeedfacefeedfacefeedfacefeedface"
BOTH = {"tensorboard": True, "wandb": {"project": "p", "mode": "offline"}}


def tensorboard_curve(root: Path, tag: str = "loss") -> list[tuple[int, float]]:
    """What TensorBoard draws: (step, value), as its own reader sees all files of the folder."""
    code = (
        "import json, sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "found = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})\n"
        "found.Reload()\n"
        "print(json.dumps([(e.step, e.value) for e in found.Scalars(sys.argv[2])]))\n"
    )
    argv = [sys.executable, "-c", code, str(root / "tensorboard"), tag]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return [(step, value) for step, value in json.loads(done.stdout.splitlines()[-1])]


def wandb_curve(root: Path, tag: str = "loss") -> list[tuple[int, float]]:
    """What `wandb sync` would send: (step, value) of the one folder there is."""
    (path,) = root.glob("wandb/offline-run-*/run-*.wandb")
    found = []
    from wandb.proto import wandb_internal_pb2

    for data in wandb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            values = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            found.append((int(values["_step"]), float(values[tag])))
    return found


def wandb_records(raw: bytes) -> list[bytes]:
    """The records of a .wandb file: LevelDB's log format, behind a header of 7 bytes."""
    found, part, at = [], b"", 7
    while at + 7 <= len(raw):
        if 32768 - at % 32768 < 7:  # too little of the block for the head of a record
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", raw[at : at + 7])
        if kind == 0:
            break
        part += raw[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(part)
            part = b""
    return found


class Attempt:
    """The process that keeps the copies, and a trainer that only writes metrics.jsonl."""

    def __init__(self, root: Path, attempt: int, *, resumed: int, metrics: Any, **env: str) -> None:
        self.root, self.attempt = root, attempt
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.trainer.mirror"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "WANDB_API_KEY": KEY, **env},
        )
        orders = {"run": str(root), "attempt": attempt, "resumed": resumed, "config": {"lr": 0.1}}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**orders, "metrics": metrics}) + "\n")
        self.process.stdin.flush()

    def log(self, steps: range) -> None:
        with (self.root / "metrics.jsonl").open("a") as file:
            for step in steps:
                line = {"attempt": self.attempt, "step": step, "loss": self.attempt * 1000.0 + step}
                file.write(json.dumps({**line, "at": time.time()}) + "\n")

    def wait_until(self, seen: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 200
        while not seen():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, f"{what}: not within 200 s"
            time.sleep(0.1)

    def end(self) -> str:
        """Let it finish; return what it complained of."""
        _, errors = self.process.communicate("end\n", timeout=200)
        assert self.process.returncode == 0, errors
        return errors

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def expected(*parts: tuple[int, range]) -> list[tuple[int, float]]:
    return [(step, attempt * 1000.0 + step) for attempt, steps in parts for step in steps]


def test_one_curve_over_attempts_that_were_lost(tmp_path: Path) -> None:
    written = tmp_path / "tensorboard/written.json"
    first = Attempt(tmp_path, 1, resumed=0, metrics=BOTH)
    first.log(range(1, 9))
    first.wait_until(written.exists, "event file")
    first.kill()  # as the end of a grace time does
    second = Attempt(tmp_path, 2, resumed=4, metrics=BOTH)
    second.log(range(5, 7))
    assert second.end() == ""
    # Steps that attempt 2 has taken back are seen by nobody.
    curve = expected((1, range(1, 5)), (2, range(5, 7)))
    assert tensorboard_curve(tmp_path) == curve
    assert wandb_curve(tmp_path) == curve
    killed = Attempt(tmp_path, 3, resumed=6, metrics=BOTH)
    killed.kill()  # before it has told anything
    killed.log(range(7, 10))
    last = Attempt(tmp_path, 4, resumed=9, metrics=BOTH)
    last.log(range(10, 12))
    assert last.end() == ""
    curve += expected((3, range(7, 10)), (4, range(10, 12)))
    assert tensorboard_curve(tmp_path) == curve
    assert wandb_curve(tmp_path) == curve
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    known = json.loads((tmp_path / "wandb/fsdpq-run.json").read_text())["id"]
    assert folder.name.endswith(known)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


def test_what_does_not_work_is_a_word_and_no_more(tmp_path: Path) -> None:
    """A server that does not answer and a folder that cannot be written, at once."""
    (tmp_path / "tensorboard").write_text("in the way")
    metrics = {"tensorboard": True, "wandb": {"project": "p"}}
    broken = Attempt(tmp_path, 1, resumed=0, metrics=metrics, WANDB_BASE_URL="http://127.0.0.1:9")
    broken.log(range(1, 4))
    errors = broken.end()
    for name in ("TensorBoard", "Weights & Biases"):
        assert errors.count(f"{name} does not get the metrics") == 1
    assert KEY not in errors


@pytest.mark.timeout(900)
def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """The trainer itself: killed after a checkpoint, it trains some steps again."""
    (tmp_path / "text").write_text("To be, or not to be, that is the question. " * 40)
    job = Job(tmp_path / "run")
    job.configure(metrics=BOTH)
    first = job.start(1)
    job.wait_for_step(6, first)
    for worker in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split():
        os.kill(int(worker), 9)
    first.communicate(timeout=200)
    job.run(2)
    truth = [(step, line["loss"]) for step, line in sorted(job.curve().items())]
    assert [step for step, _ in truth] == list(range(1, STEPS + 1))
    assert any(line["attempt"] == 1 and line["step"] > 4 for line in job.lines())
    assert wandb_curve(job.root) == truth
    single = [(step, struct.unpack("f", struct.pack("f", loss))[0]) for step, loss in truth]
    assert tensorboard_curve(job.root) == single
