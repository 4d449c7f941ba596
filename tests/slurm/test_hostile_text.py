"""Text that a shell, sbatch or a pattern would take apart: works, or is refused; never runs."""

from __future__ import annotations

import subprocess

import pytest

from orchestrator.rundir.layout import RunLayout

from .cluster import Cluster
from .user import COUNTER, FsdpqUser, steps

HOSTILE = [
    "two words",
    "it's",
    'a "quoted" one',
    "$(touch CANARY)",
    "`touch CANARY`",
    "; touch CANARY;",
    "a\\b",
    "#SBATCH --hold",
    "-dash",
    "*?[x]",
    "tab\there",
    "100%j",
    "line\n#SBATCH --hold\ntouch CANARY",
    "\u00e4\u00f6 \u4e2d",
]


def no_canary(user: FsdpqUser) -> bool:
    found = user.cluster.run(["find", str(user.home), "-name", "CANARY*"])
    return not found.stdout.strip()


def test_folders_with_hostile_names_work(cluster: Cluster, user: FsdpqUser) -> None:
    """The run directory, the script's folder, the working directory, arguments and variables."""
    texts = [text for text in HOSTILE if not set("%\\") & set(text) and text.isprintable()]
    name = " ".join(text.replace("/", "") for text in texts)[:120]
    folder = user.home / name
    cluster.run(["mkdir", "-p", str(folder)])
    cluster.run(["cp", str(COUNTER), str(folder / "count me $(touch CANARY).py")])
    job = user.job_file(
        "hostile",
        script=str(folder / "count me $(touch CANARY).py"),
        args=["3", "0.1", "2"],
        workdir=str(folder),
        env={f"TEXT_{i}": text for i, text in enumerate(texts)},
    )
    user.fsdpq("submit", str(job), "--runs", str(folder))
    run = RunLayout(folder / "hostile")
    cluster.wait_for(run.finished.exists, 90, "it finishes")
    assert [line["step"] for line in steps(run)] == [1, 2, 3]
    cluster.wait_for(lambda: "finished" in run.output.read_text(), 20, "the shell says so")
    assert no_canary(user)


@pytest.mark.parametrize("text", ["; touch CANARY;", "#SBATCH --hold", "-dash", "two words"])
def test_values_that_sbatch_would_take_apart(cluster: Cluster, user: FsdpqUser, text: str) -> None:
    """As a comment they arrive whole; as an account Slurm does not know them, and nothing stays."""
    job = user.job_file("comment", script=str(COUNTER), args=["500", "1", "100"], comment=text)
    user.fsdpq("submit", str(job))
    job_id = user.status("comment")["job_id"]
    shown = cluster.run(["squeue", "--noheader", f"--jobs={job_id}", "--states=all", "--format=%k"])
    assert shown.stdout.strip() == text
    user.fsdpq("cancel", "comment", "--now")
    job = user.job_file("account", script=str(COUNTER), args=["1", "0", "1"], account=text)
    done = user.fsdpq("submit", str(job), check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert not (user.runs / "account").exists()
    assert no_canary(user)


def test_a_folder_that_slurm_takes_for_a_pattern_is_refused(user: FsdpqUser) -> None:
    job = user.job_file("pattern", script=str(COUNTER), args=["1", "0", "1"])
    done: subprocess.CompletedProcess[str] = user.fsdpq(
        "submit", str(job), "--runs", str(user.home / "100%j"), check=False
    )
    assert done.returncode == 1
    assert "'%'" in done.stderr
    assert not user.live_jobs()
