"""A Slurm that does not answer, answers too much, or answers with nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.slurm import asking, hearing

from .recorded_slurm import SITE, Fake, fsdpq, own

pytestmark = pytest.mark.processes
HANGS = 'echo "$0 $*" >>asked; exec sleep 1000'


def asked() -> list[str]:
    """Return which questions hung, without their options."""
    lines = Path("asked").read_text().splitlines()
    return [asking.short([Path(line.split()[0]).name, *line.split()[1:]]) for line in lines]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_TIMEOUT_S", 1.0)
    monkeypatch.setattr(asking, "_HELP_TIMEOUT_S", 1.0, raising=False)
    monkeypatch.setattr(hearing, "_TELL_S", 0.2)


def hang_all(slurm: Fake) -> None:
    for name in ("scontrol", "sacctmgr", "sinfo", "srun"):
        slurm(name, HANGS)


@pytest.mark.parametrize("command", [["sites", "detect"], ["init", "--yes"]])
def test_one_question_is_enough(slurm: Fake, impatient: None, command: list[str]) -> None:
    hang_all(slurm)
    done = fsdpq(*command)
    assert (done.exit_code, asked()) == (1, ["scontrol show partition"])
    assert "waiting for Slurm: `scontrol show partition`, 0 s" in done.stderr
    assert "scontrol --oneliner --all show partition gave no answer in time" in done.stderr
    assert not own().exists()


@pytest.mark.parametrize("command", [["sites", "detect"], ["init", "--yes"]])
def test_each_daemon_is_asked_in_vain_once(
    slurm: Fake, impatient: None, command: list[str]
) -> None:
    """The partitions come, and then nothing more: neither of the controller nor of accounting."""
    hang_all(slurm)
    slurm("scontrol", f'case "$*" in *partition*) cat {SITE}/partition.txt ;; *) {HANGS} ;; esac')
    done = fsdpq(*command)
    assert done.exit_code == 0, done.output
    assert asked() == ["scontrol show config", "sacctmgr show associations user=" + user(), "srun"]
    why = "not asked, for `scontrol show config` got no answer"
    assert f"left out: scontrol show node: {why}" in done.stderr
    assert f"left out: sinfo: {why}" in done.stderr


def user() -> str:
    from orchestrator.detect import looking

    return looking.user_name()


def test_all_questions_share_one_time(
    slurm: Fake, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_BUDGET_S", 0.0)
    done = fsdpq("sites", "detect")
    assert done.exit_code == 1
    assert "not asked, for Slurm's other answers took 0 s" in done.stderr


def test_nothing_is_asked_twice(slurm: Fake) -> None:
    """`init` needs accounts and partitions after `detect` has seen them."""
    for name in ("scontrol", "sacctmgr"):
        body = Path(next(Path().absolute().parent.glob(f"bin/{name}"))).read_text()
        slurm(name, f'echo "$0 $*" >>asked\n{body}')
    done = fsdpq("init", "--yes", "--partition", "mixed")
    assert done.exit_code == 0, done.output
    assert len(asked()) == len(set(asked()))


def test_an_answer_without_end_is_not_kept(slurm: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "MOST_BYTES", 1 << 20)
    slurm("scontrol", "exec yes PartitionName=x")
    done = fsdpq("sites", "detect")
    assert done.exit_code == 1
    assert "its answer is longer than 1 MiB, so it was not read" in done.stderr


def test_more_on_standard_error_than_anybody_reads(slurm: Fake) -> None:
    slurm("scontrol", "yes no | head -c 10000000 >&2; exit 1")
    done = fsdpq("sites", "detect")
    assert done.exit_code == 1
    assert len(done.stderr) < 1 << 20


def test_nonsense_is_blamed_on_who_said_it(slurm: Fake) -> None:
    """And not on accounting, which may be silent as well."""
    slurm("scontrol", "echo '<html>504 Gateway'")
    slurm("sacctmgr", "echo down >&2; exit 1")
    done = fsdpq("sites", "detect")
    assert done.exit_code == 1
    assert "show partition exited with 0: nothing in its answer can be used" in done.stderr
    assert "<html>504 Gateway" in done.stderr
    assert "sacctmgr" not in done.stderr


def test_nonsense_of_another_command_is_noted(slurm: Fake) -> None:
    slurm("sacctmgr", "echo oops")
    found = json.loads(fsdpq("sites", "detect", "--json").stdout)
    [said] = [one for one in found["left_out"] if "sacctmgr" in one]
    assert said.startswith("sacctmgr show associations user=")
    assert "nothing in its answer can be used; it begins with 'oops'" in said
