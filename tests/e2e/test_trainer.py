"""Real training under torchrun: two workers, gloo, a model of two small layers.

What matters: an interrupted run goes on as if it had not been interrupted, and nothing that breaks
is passed over in silence.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint import describe_files, list_checkpoints

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e

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


@pytest.fixture
def make_job(tmp_path: Path) -> Any:
    jobs: list[Job] = []
    write_text(tmp_path / "text")

    def make(name: str = "run", **changes: Any) -> Job:
        job = Job(tmp_path / name)
        job.configure(**changes)
        jobs.append(job)
        return job

    yield make
    for process in [process for job in jobs for process in job.started]:
        process.kill()
        process.communicate()


MakeJob = Callable[..., Job]


def write_text(folder: Path) -> None:
    folder.mkdir()
    words = [f"{n} squared is {n * n}.\n" for n in range(150)]
    (folder / "a.txt").write_text("".join(words[:70]))
    (folder / "b.txt").write_text("".join(words[70:]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A run that nobody interrupts, on two ranks."""
    folder = tmp_path_factory.mktemp("whole")
    write_text(folder / "text")
    job = Job(folder / "run")
    job.configure()
    job.run(1)
    return job


@pytest.fixture
def half(whole: Job, tmp_path: Path) -> Job:
    """The same run, as it lay there after step 8 of a first attempt that was killed."""
    shutil.copytree(whole.root.parent / "text", tmp_path / "text")
    job = Job(tmp_path / "run")
    job.configure()
    for step in (4, 8):
        shutil.copytree(whole.checkpoints / f"step-{step}", job.checkpoints / f"step-{step}")
    (job.checkpoints / "LATEST").write_text("step-8\n")
    return job


def same_curve(a: Job, b: Job, *, steps: range = range(1, STEPS + 1)) -> None:
    keys = ("loss", "grad_norm", "lr", "samples")
    found, wanted = a.curve(), b.curve()
    for step in steps:
        for key in keys:
            assert found[step][key] == wanted[step][key], (step, key)


def close_curve(a: Job, b: Job, *, steps: range = range(1, STEPS + 1)) -> None:
    found, wanted = a.curve(), b.curve()
    for step in steps:
        assert found[step]["samples"] == wanted[step]["samples"]
        assert found[step]["lr"] == wanted[step]["lr"]
        for key in ("loss", "grad_norm"):
            assert math.isclose(found[step][key], wanted[step][key], rel_tol=1e-4), (step, key)


# -- going on --------------------------------------------------------------------------------------


def test_uninterrupted(whole: Job) -> None:
    lines = whole.lines()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert [line["samples"] for line in lines] == [
        [n * SAMPLES_PER_STEP, SAMPLES_PER_STEP] for n in range(STEPS)
    ]
    status = whole.status(1)
    assert (status["outcome"], status["step"], status["saved_step"]) == ("finished", 12, 12)
    assert whole.read("finished.json")["step"] == STEPS
    left = sorted(path.name for path in whole.checkpoints.iterdir())
    assert left == ["LATEST", "step-12", "step-4", "step-8"]
    assert not (whole.root / "attempts/1/errors").exists()


def test_stopped_run_goes_on_bit_for_bit(make_job: MakeJob, whole: Job) -> None:
    job = make_job()
    process = job.start(1)
    job.wait_for_step(5, process)
    job.notice(1).write_text("USR2 1732900000\n")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    status = job.status(1)
    assert status["outcome"] == "stopped"
    assert status["saved_step"] == status["step"] == len(job.lines())
    assert 5 <= status["step"] < STEPS
    assert status["progress"] is True
    job.run(2)
    assert job.read("attempts/2/resume.json")["step"] == status["step"]
    assert len(job.lines()) == STEPS  # no step was lost, none done twice
    assert {line["attempt"] for line in job.lines()} == {1, 2}
    same_curve(job, whole)
    assert "already" not in job.run(3)  # finished: ends at once
    assert not (job.root / "attempts/3/status.json").exists()


def test_signal_to_one_worker_stops_all(make_job: MakeJob) -> None:
    job = make_job(steps=100000)
    process = job.start(1)
    job.wait_for_step(2, process)
    os.kill(children(process.pid)[-1], signal.SIGUSR2)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    status = job.status(1)
    assert status["reason"].startswith("USR2")
    assert status["saved_step"] == status["step"] == len(job.lines())


def test_killed_run_repeats_its_lost_steps(make_job: MakeJob, whole: Job) -> None:
    job = make_job()
    process = job.start(1)
    job.wait_for_step(6, process)
    process.kill()
    process.wait()
    wait_until_gone(job)
    done = len(job.lines())
    job.run(2)
    resumed = job.read("attempts/2/resume.json")["step"]
    assert resumed in (4, 8)
    assert len(job.lines()) == done + STEPS - resumed
    same_curve(job, whole)


def test_saving_when_it_is_worth_it_changes_no_bit(make_job: MakeJob, whole: Job) -> None:
    """`every_steps: auto`: the clock decides when to save, and the curve cannot tell."""
    job = make_job(checkpoint={"every_steps": "auto", "max_interval_s": 0.01, "keep_last": 9})
    process = job.start(1)
    job.wait_for_step(6, process)
    process.kill()
    process.wait()
    wait_until_gone(job)
    job.run(2)
    resumed = job.read("attempts/2/resume.json")["step"]
    assert resumed >= 4  # with 500 steps or an hour between saves there would be nothing
    same_curve(job, whole)
    written = [json.loads(line) for line in (job.root / "saves.jsonl").read_text().splitlines()]
    saves = [line for line in written if line["kind"] == "save"]
    # The first step of an attempt is when rank 0 starts to look at the clock. What the kill cut
    # off may be a line of this file.
    one, two = ([s["step"] for s in saves if s["attempt"] == n] for n in (1, 2))
    assert one in ([*range(2, resumed + 1)], [*range(2, resumed)])
    assert two == [*range(resumed + 2, STEPS + 1)]
    assert {line["steps"] for line in written if line["kind"] == "interval"} == {1}
    assert (saves[-2]["reason"], saves[-1]["reason"]) == ("interval", "end")


def test_other_numbers_of_ranks(make_job: MakeJob) -> None:
    # Without dropout: which rank draws which mask does depend on their number.
    straight = make_job("straight", model=still())
    straight.run(1, workers=2)
    job = make_job("changed", model=still())
    for attempt, workers, stop_at in ((1, 1, 3), (2, 2, 7)):
        process = job.start(attempt, workers=workers)
        job.wait_for_step(stop_at, process)
        job.notice(attempt).write_text("USR2\n")
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out
    job.run(3, workers=1)
    assert [line["step"] for line in job.lines()] == list(range(1, STEPS + 1))
    assert [line["world_size"] for line in job.lines()[:: STEPS - 1]] == [1, 1]
    assert 2 in {line["world_size"] for line in job.lines()}
    close_curve(job, straight)


def still() -> dict[str, Any]:
    return {"config": {**TRAIN["model"]["config"], "attention_dropout": 0.0}}


# -- stopping early --------------------------------------------------------------------------------


def test_notice_during_start_up(half: Job) -> None:
    half.notice(2).write_text("USR2\n")
    half.run(2)
    status = half.status(2)
    assert status["outcome"] == "stopped"
    assert status["progress"] is False
    assert (status["first_step"], status["step"], status["saved_step"]) == (8, 8, 8)
    assert half.lines() == []


def test_notice_during_the_first_start_up(make_job: MakeJob) -> None:
    job = make_job()
    job.notice(1).write_text("TERM\n")
    job.run(1)
    status = job.status(1)
    assert (status["outcome"], status["step"], status["saved_step"]) == ("stopped", 0, None)
    assert not job.checkpoints.exists()
    assert job.lines() == []


# -- damaged checkpoints ---------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def test_damaged_checkpoints_fall_back(half: Job, whole: Job) -> None:
    shutil.copytree(whole.checkpoints / "step-12", half.checkpoints / "step-12")
    (half.checkpoints / "step-12" / "manifest.json").unlink()
    flip(half.checkpoints / "step-8" / "__1_0.distcp")
    half.run(2)
    resumed = half.read("attempts/2/resume.json")
    assert resumed["step"] == 4
    assert [item["step"] for item in resumed["quarantined"]] == [12, 8]
    reasons = [item["reason"] for item in resumed["quarantined"]]
    assert reasons[0] == "no manifest: the save was cut off"
    assert "hash differs" in reasons[1]
    assert all(Path(item["path"]).is_dir() for item in resumed["quarantined"])
    same_curve(half, whole, steps=range(5, STEPS + 1))


@pytest.mark.parametrize(
    ("damage", "file", "reason"),
    [
        (flip, "__1_0.distcp", "hash differs"),
        (flip, ".metadata", "hash differs"),
        (truncate, "__0_0.distcp", "bytes instead of"),
        (Path.unlink, "manifest.json", "no manifest: the save was cut off"),
        (Path.unlink, ".metadata", ".metadata is missing"),
        (Path.unlink, "__0_0.distcp", "__0_0.distcp is missing"),
    ],
)
def test_damage_is_found(half: Job, damage: Callable[[Path], None], file: str, reason: str) -> None:
    damage(half.checkpoints / "step-8" / file)
    newest, elder = list_checkpoints(half.checkpoints, verify=True)
    assert reason in newest.reason
    assert elder.complete


def test_verified_checkpoint_that_does_not_load(half: Job, whole: Job) -> None:
    """Whole files, wrong contents: only loading tells. Its elder loads, so it is set aside."""
    newest = half.checkpoints / "step-8"
    (newest / ".metadata").write_bytes(b"no pickle")
    describe_anew(newest)
    half.run(2)
    resumed = half.read("attempts/2/resume.json")
    assert resumed["step"] == 4
    assert [item["step"] for item in resumed["quarantined"]] == [8]
    same_curve(half, whole, steps=range(5, STEPS + 1))


def describe_anew(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, entry in describe_files(folder, manifest["files"]).items():
        manifest["files"][name] = {"size": entry.size, "sha256": entry.sha256}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_another_model_costs_no_checkpoint(half: Job) -> None:
    config = {**TRAIN["model"]["config"], "num_hidden_layers": 3}
    half.configure(model={"config": config})
    half.run(2, code=1)
    assert half.status(2)["outcome"] == "failed"
    assert "num_hidden_layers was 2 and is 3" in half.status(2)["reason"]
    left = sorted(path.name for path in half.checkpoints.glob("step*"))
    assert left == ["step-4", "step-8"]


def test_nothing_usable_is_an_error(half: Job) -> None:
    for step in (4, 8):
        flip(half.checkpoints / f"step-{step}" / "__0_0.distcp")
    half.run(2, code=1)
    assert half.status(2)["outcome"] == "no_checkpoint"
    assert half.lines() == []


def test_changed_text_is_an_error(half: Job) -> None:
    (half.root.parent / "text" / "c.txt").write_text("more")
    half.run(2, code=1)
    assert "sources, their weights or seq_len changed after step 8" in half.status(2)["reason"]
    assert (half.checkpoints / "step-8").is_dir()


# -- errors ----------------------------------------------------------------------------------------

RAISING = """
import os, sys
from orchestrator import runtime
run = runtime.attach()
with runtime.guard(run):
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    run.resume()
    if run.env.rank == 1:
        run.heartbeat(3)
        raise BaseException("on purpose")
    dist.all_reduce(torch.ones(1))  # the other waits here
"""


def test_one_rank_that_raises_hangs_nobody(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    (tmp_path / "raising.py").write_text(RAISING)
    job.run(1, code=1, program=str(tmp_path / "raising.py"))
    ended = time.time()
    error = job.read("attempts/1/errors/rank-1.json")
    assert error["exception"] == "BaseException: on purpose"
    assert (error["rank"], error["local_rank"], error["step"]) == (1, 1, 3)
    assert ended - error["at"] < 25  # a stuck survivor would cost torchrun's 30 s
    status = job.status(1)
    assert (status["outcome"], status["rank"]) == ("failed", 1)
    assert "on purpose" in status["reason"]


def test_batch_that_does_not_fit_is_said_at_once(make_job: MakeJob) -> None:
    job = make_job(global_batch=7, micro_batch=1)
    job.run(1, code=1)
    assert "global_batch 6 or 8" in job.status(1)["reason"]


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def wait_until_gone(job: Job) -> None:
    """Wait until no worker of the job writes any more: they die with their torchrun."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(uses(path, job.root) for path in Path("/proc").glob("[0-9]*")):
            return
        time.sleep(0.05)
    pytest.fail("workers outlived their torchrun")


def uses(process: Path, root: Path) -> bool:
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        return (
            state != "Z"
            and f"FSDPQ_RUN_DIR={root}\0".encode() in (process / "environ").read_bytes()
        )
    except OSError:
        return False
