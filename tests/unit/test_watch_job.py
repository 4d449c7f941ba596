"""The watch job: one for a directory of runs, found by its name, ended for good."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.errors import QueryError, RunError, SchedulerError, SpecError
from orchestrator.scheduler import JobState
from orchestrator.slurm import client
from orchestrator.watching import watch_job
from orchestrator.watching.watch_job import Options, WatchJob

from .builders import plan, site
from .fake_cluster import Cluster

S = JobState


class Sbatch:
    """sbatch, with an answer that a test sets."""

    def __init__(self) -> None:
        self.argvs: list[list[str]] = []
        self.answer = "8\n"
        self.error: SchedulerError | None = None

    def run(self, argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.argvs.append(argv)
        if self.error is not None:
            raise self.error
        return subprocess.CompletedProcess(argv, 0, self.answer, "")


@pytest.fixture
def sbatch(monkeypatch: pytest.MonkeyPatch) -> Sbatch:
    made = Sbatch()
    monkeypatch.setattr(client, "run", made.run)
    return made


def described(runs: Path, *names: str, **options: Any) -> WatchJob:
    return watch_job.describe(runs, names, options=Options(**options), python="/venv/bin/python")


# --- the script -------------------------------------------------------------------------------


def test_the_job_is_small_and_waits_its_turn(tmp_path: Path) -> None:
    directives = dict(described(tmp_path, time=90, account="lab").directives)
    assert directives["time"] == "01:30:00"
    assert directives["account"] == "lab"
    assert (directives["ntasks"], directives["mem"]) == ("1", "1G")
    assert directives["dependency"] == "singleton"
    assert "partition" not in directives
    assert "no-requeue" in directives


def test_each_directory_of_runs_has_a_job_of_its_own(tmp_path: Path) -> None:
    one, two = described(tmp_path / "a"), described(tmp_path / "b")
    assert one.name != two.name
    assert described(tmp_path / "a", "llama").name == one.name


def test_a_percent_sign_is_no_pattern_and_a_backslash_is_refused(tmp_path: Path) -> None:
    assert "/100%%j/" in dict(described(tmp_path / "100%j").directives)["output"]
    with pytest.raises(SpecError, match="pattern"):
        described(tmp_path / "a\\b")
    with pytest.raises(SpecError, match="control"):
        described(tmp_path / "a\nb")


# --- options ----------------------------------------------------------------------------------


def test_the_account_is_that_of_the_runs_unless_it_is_given() -> None:
    lab = plan(directives=(("account", "lab"),))
    other = plan(directives=(("account", "other"),))
    assert watch_job.options({}, [lab, lab]).account == "lab"
    assert watch_job.options({}, [lab, other]).account is None
    assert watch_job.options({"account": "mine"}, [lab]).account == "mine"


def test_options_that_cannot_be_used_are_named() -> None:
    with pytest.raises(SpecError, match=r"time: .*tomorrow"):
        watch_job.options({"time": "tomorrow"}, [])
    with pytest.raises(SpecError, match="partition: contains"):
        watch_job.options({"partition": "$(touch x)"}, [])


def test_local_runs_need_no_job() -> None:
    local = plan(at=site(scheduler="local"))
    with pytest.raises(RunError, match="cron"):
        watch_job.options({}, [local])


# --- starting and stopping --------------------------------------------------------------------


def test_it_is_submitted(tmp_path: Path, cluster: Cluster, sbatch: Sbatch) -> None:
    job = described(tmp_path)
    (tmp_path / ".watch").mkdir()
    (tmp_path / ".watch" / "stop").touch()
    assert watch_job.start(job, cluster).startswith("job 8 watches;")
    assert sbatch.argvs == [["sbatch", "--parsable", str(tmp_path / ".watch" / "watch.sbatch")]]
    assert (tmp_path / ".watch" / "watch.sbatch").read_text() == job.text
    assert not (tmp_path / ".watch" / "stop").exists()


@pytest.mark.parametrize("state", [S.PENDING, S.RUNNING])
def test_there_is_one_already(
    tmp_path: Path, cluster: Cluster, sbatch: Sbatch, state: JobState
) -> None:
    job = described(tmp_path)
    watch_job.start(job, cluster)
    cluster.put("8", state, name=job.name)
    assert watch_job.start(job, cluster).startswith("job 8 watches already")
    assert len(sbatch.argvs) == 1
    with pytest.raises(RunError, match="--stop-job"):
        watch_job.start(described(tmp_path, "llama"), cluster)
    assert len(sbatch.argvs) == 1


def test_one_that_has_ended_is_none(tmp_path: Path, cluster: Cluster, sbatch: Sbatch) -> None:
    job = described(tmp_path)
    cluster.put("8", S.TIMEOUT, name=job.name)
    watch_job.start(job, cluster)
    assert len(sbatch.argvs) == 1


def test_nothing_is_submitted_while_slurm_is_silent(
    tmp_path: Path, cluster: Cluster, sbatch: Sbatch
) -> None:
    cluster.silent = True
    with pytest.raises(QueryError):
        watch_job.start(described(tmp_path), cluster)
    assert sbatch.argvs == []


def test_what_waits_is_cancelled_before_what_runs(tmp_path: Path, cluster: Cluster) -> None:
    job = described(tmp_path)
    job.folder.mkdir()
    cluster.put("8", S.RUNNING, name=job.name)
    running = cluster.found
    cluster.put("9", S.PENDING, name=job.name)
    cluster.found = running + cluster.found
    cluster.cancel = lambda job_id: cluster.done.append(("cancel", job_id))  # type: ignore[method-assign]
    assert watch_job.stop(job, cluster) == "ended job 8, 9"
    assert cluster.done == [("cancel", "9"), ("cancel", "8")]
    assert (tmp_path / ".watch" / "stop").exists()


def test_stopping_where_there_is_none(tmp_path: Path, cluster: Cluster) -> None:
    assert watch_job.stop(described(tmp_path / "none"), cluster) == "no job watches these runs"
    assert list(tmp_path.iterdir()) == []


# --- the command line -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["--as-job", "--once"],
        ["--as-job", "--stop-job"],
        ["--partition", "p"],
        ["--time", "10"],
    ],
)
def test_options_that_do_not_go_together(args: list[str]) -> None:
    assert CliRunner().invoke(main, ["watch", *args]).exit_code == 2


def test_from_the_command_line(
    tmp_path: Path, cluster: Cluster, sbatch: Sbatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["watch", "--as-job", "--time", "2:00:00"])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "runs" / ".watch" / "watch.sbatch").read_text()
    assert "#SBATCH --time=02:00:00\n" in text
    assert f"watch --runs {tmp_path}/runs --every 15; do" in text
    assert CliRunner().invoke(main, ["watch", "--stop-job"]).output == "no job watches these runs\n"
