"""The sweep as a job of its own: what is submitted, what comes back, what Ctrl-C leaves."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from orchestrator import guard
from orchestrator.answers import bandwidth_job
from orchestrator.cli import main
from orchestrator.errors import SpecError
from orchestrator.rundir.layout import RunLayout
from orchestrator.scheduler import JobState
from orchestrator.submitting.launch import Launch

from .builders import NOW, SITE, write_job
from .fake_cluster import Cluster
from .test_bandwidth import all_pairs

FAST = {**SITE, "fabric": {"kind": "infiniband", "busbw_gbs": 380}}
TRAIN: dict[str, Any] = {
    "model": {"config": {"model_type": "llama"}},
    "data": {"text_files": ["x"], "seq_len": 8},
    "steps": 30,
    "global_batch": 7,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(FAST))
    return tmp_path


def prepare(here: Path, **job: Any) -> Launch:
    return on_nodes(here, None, **job)


def on_nodes(here: Path, nodes: int | None, **job: Any) -> Launch:
    path = write_job(here, **{"site": "site.yaml", "nodes": 4, "gpus_per_node": 8, **job})
    return bandwidth_job.prepare(path, runs=Path("runs"), site=None, overrides=[], nodes=nodes)


def test_it_runs_on_the_resources_of_the_job(here: Path) -> None:
    asked: dict[str, Any] = {
        "partition": "gpu",
        "account": "lab",
        "exclude": ["n9"],
        "env": {"NCCL_X": "1"},
    }
    plan = prepare(here, **asked).plan
    options = dict(plan.directives)
    assert (plan.run, plan.nodes, plan.nproc_per_node) == ("llama-bandwidth", 4, 8)
    assert (options["partition"], options["account"], options["exclude"]) == ("gpu", "lab", "n9")
    assert dict(plan.env)["NCCL_X"] == "1"
    assert plan.program == (
        *("-m", "orchestrator.preflight.sweep"),
        *("--budget", "120", "--ratio", "0.7", "--expected", "380.0"),
    )
    # The copy of fsdpq is what the nodes run.
    assert plan.python_path == (str(here / "runs" / "llama-bandwidth" / "fsdpq"),)


def test_nothing_of_the_training_is_asked_for(here: Path) -> None:
    job: dict[str, Any] = {"script": None, "train": TRAIN, "elastic": {"min_nodes": 2}}
    prepared = prepare(here, **job, code={"max_mib": 1})
    assert "train.json" not in prepared.files
    assert prepared.code.tree is None
    assert (prepared.plan.steps_total, prepared.plan.policy.sizes) == (None, (4,))


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        ({}, "00:09:00"),
        ({"time_limit": "2-00:00:00"}, "00:09:00"),
        ({"time_limit": "5:00"}, "00:05:00"),
    ],
)
def test_it_is_short(here: Path, asked: dict[str, str], limit: str) -> None:
    assert dict(prepare(here, **asked).plan.directives)["time"] == limit


def test_it_stays_within_the_limit_of_the_partition(here: Path) -> None:
    short = {**FAST, "partitions": {"debug": {"time_limit": "00:03:00"}}}
    (here / "site.yaml").write_text(yaml.safe_dump(short))
    assert dict(prepare(here, partition="debug").plan.directives)["time"] == "00:03:00"


def test_another_number_of_nodes(here: Path) -> None:
    assert on_nodes(here, 2).plan.nodes == 2
    alone = on_nodes(here, 1)
    assert "--expected" not in alone.plan.program


def test_each_measurement_is_a_run_of_its_own(here: Path) -> None:
    for taken in ("llama-bandwidth", "llama-bandwidth-2"):
        (here / "runs" / taken).mkdir(parents=True)
    assert prepare(here).plan.run == "llama-bandwidth-3"


def test_its_own_check_does_not_measure_first(here: Path) -> None:
    checks = {"bandwidth": True, "all_reduce": True, "bandwidth_timeout_s": 30}
    prepared = prepare(here, preflight=checks)
    asked = json.loads(prepared.files["preflight.json"])["checks"]
    assert "all_reduce" in asked
    assert "bandwidth" not in asked
    assert prepared.plan.program[2:4] == ("--budget", "30")


def test_one_machine_has_no_time_limit(here: Path) -> None:
    plan = on_nodes(here, 1, site="local").plan
    assert (plan.scheduler, plan.directives) == ("local", ())


def test_one_rank_alone_is_refused(here: Path) -> None:
    with pytest.raises(SpecError, match="nobody to talk to"):
        on_nodes(here, 1, gpus_per_node=1)


class Job:
    """What the cluster does with the job from one look to the next."""

    def __init__(self, here: Path, cluster: Cluster) -> None:
        self.run = RunLayout(here / "runs" / "llama-bandwidth")
        self.cluster = cluster
        self.looks: list[Any] = []

    def put(self, job_id: str, state: JobState, **changes: Any) -> None:
        """Let there be one job, called as the run's jobs are."""
        Cluster.put(self.cluster, job_id, state, **{"name": self.name, **changes})

    def sleep(self, seconds: float) -> None:
        self.looks.pop(0)()

    def starts(self) -> None:
        self.run.attempt(1).root.mkdir()
        start = {"job_id": "8", "restart": 0, "nodes": "n[1-4]", "started_at": NOW - 60}
        self.run.attempt(1).start.write_text(json.dumps(start))
        self.cluster.put("8", JobState.RUNNING)

    def waits(self) -> None:
        self.cluster.put("8", JobState.PENDING, reason="Resources")

    def goes_silent(self) -> None:
        self.cluster.silent = True
        raise KeyboardInterrupt

    def measures(self) -> None:
        sweep = all_pairs(4, slow={"n2": 200.0})
        self.run.attempt(1).bandwidth.write_text(json.dumps(sweep.to_json()))

    def finishes(self) -> None:
        self.run.finished.write_text("{}")
        self.cluster.put("8", JobState.COMPLETED, exit_code=0)

    def fails(self) -> None:
        self.cluster.put("8", JobState.FAILED)

    def interrupted(self) -> None:
        raise KeyboardInterrupt

    @property
    def name(self) -> str:
        name: str = json.loads(self.run.plan.read_text())["job_name"]
        return name


@pytest.fixture
def job(here: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job(here, cluster)
    monkeypatch.setattr(cluster, "put", made.put)
    monkeypatch.setattr(time, "sleep", made.sleep)
    monkeypatch.setattr(guard, "_start", lambda argv, env: None)  # a process
    return made


@pytest.fixture
def dismissed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Get an entry for each guard that is sent home."""
    done: list[bool] = []
    monkeypatch.setattr(guard.Guard, "dismiss", lambda self: done.append(True))
    return done


def bench(here: Path, *options: str) -> Result:
    path = write_job(here, site="site.yaml", nodes=4, gpus_per_node=8)
    return CliRunner().invoke(main, ["diagnose", "--bench", str(path), *options])


def test_the_figures_come_back(here: Path, job: Job) -> None:
    job.looks = [job.starts, job.measures, job.finishes]
    done = bench(here, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["run"], said["trouble"], said["nodes"][0]) == ("llama-bandwidth", None, "n1")
    assert said["finding"]["slow_nodes"] == [{"node": "n2", "best_bus_gbs": 200.0}]
    assert "run llama-bandwidth: job 8" in done.stderr
    assert "64 MiB: 380 GB/s (all_reduce)" in done.stderr


def test_the_table_is_for_people(here: Path, job: Job) -> None:
    job.looks = [job.starts, job.measures, job.finishes]
    done = bench(here)
    assert done.exit_code == 0, done.output
    assert "slow node n2" in done.stdout


def test_a_sweep_that_fails_is_told_with_what_it_has_and_not_tried_again(
    here: Path, job: Job
) -> None:
    job.looks = [job.starts, job.measures, job.fails]
    done = bench(here)
    assert done.exit_code == 1
    assert "slow node n2" in done.stdout
    assert "Error: llama-bandwidth: " in done.stderr
    assert "fsdpq logs llama-bandwidth" in done.stderr
    assert [what for what in job.cluster.done if what[0] in ("submit", "requeue")] == [("submit",)]


def test_a_job_that_ends_well_without_figures_is_an_error(here: Path, job: Job) -> None:
    job.looks = [job.starts, job.finishes]
    done = bench(here)
    assert done.exit_code == 1
    assert "left no figures" in done.stderr


def test_ctrl_c_cancels_the_job(here: Path, job: Job) -> None:
    job.looks = [job.starts, job.interrupted]
    done = bench(here)
    assert done.exit_code == 130
    assert ("cancel", "8") in job.cluster.done
    assert job.run.cancelled.exists()
    assert "cancelled" in done.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_cancels_the_job(here: Path, job: Job, number: int, code: int) -> None:
    """And a second one while that is done does not stop it."""
    cancel = job.cluster.cancel

    def interrupted(job_id: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), number)
        cancel(job_id)

    job.cluster.cancel = interrupted  # type: ignore[method-assign]
    job.looks = [job.starts, lambda: os.kill(os.getpid(), number)]
    done = bench(here)
    assert done.exit_code == code
    assert ("cancel", "8") in job.cluster.done
    assert job.run.cancelled.exists()


def test_a_terminal_that_is_gone_cancels_the_job(here: Path, job: Job) -> None:
    """Whatever ends the wait: nobody would read the figures."""
    job.looks = [job.starts]
    said = []

    def show(text: str) -> None:
        said.append(text)
        if "running" in text or "cancelled" in text:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        bandwidth_job.measure(prepare(here), show=show)
    assert ("cancel", "8") in job.cluster.done
    assert "cancelled" in said[-1]


def test_a_slurm_that_does_not_cancel_leaves_that_to_the_guard(
    here: Path, job: Job, dismissed: list[bool]
) -> None:
    job.looks = [job.starts, job.measures, job.goes_silent]
    done = bench(here)
    assert done.exit_code == 130
    assert "cancelling it is tried again" in done.stderr
    assert dismissed == []


def test_the_guard_goes_when_all_is_well(here: Path, job: Job, dismissed: list[bool]) -> None:
    job.looks = [job.starts, job.measures, job.finishes]
    assert bench(here).exit_code == 0
    assert dismissed == [True]


def test_the_guard_cancels_the_run(here: Path) -> None:
    prepared = prepare(here)
    runs = str(here / "runs")
    want = ["cancel", "--now", "--runs", runs, "--", "llama-bandwidth"]
    assert bandwidth_job._cancel_argv(prepared)[1:] == ["-m", "orchestrator", *want]


def test_one_node_is_told(here: Path, job: Job) -> None:
    job.looks = [job.starts, job.finishes]
    assert "one node: this measures between its own GPUs" in bench(here, "--nodes", "1").stderr


def test_several_nodes_are_not(here: Path, job: Job) -> None:
    job.looks = [job.starts, job.finishes]
    assert "one node" not in bench(here).stderr


def test_a_wait_is_told_again(here: Path, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth_job, "_TELL_S", 0.0, raising=False)
    job.looks = [job.waits, job.waits, job.starts, job.finishes]
    said = bench(here).stderr
    assert said.count("job 8 is pending: Resources") == 2
    assert "s so far; Ctrl-C cancels the job)" in said


def test_a_refused_job_leaves_nothing(here: Path, job: Job) -> None:
    job.cluster.refuses.add("submit")
    done = bench(here)
    assert done.exit_code == 1
    assert "Invalid account" in done.stderr
    assert not job.run.root.exists()


def test_a_mistake_in_the_job_file_is_one_message(here: Path, job: Job) -> None:
    done = bench(here, "--set", "preflight.bandwith=true")
    assert done.exit_code == 1
    assert "Did you mean 'bandwidth'" in done.stderr
    assert "Traceback" not in done.output
