"""The batch shell's part: when it puts its job back, and when it leaves that to others."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from orchestrator.runstore import store

from .batch_shell import NEWER, World, make, stops

pytestmark = pytest.mark.processes


def test_notice_and_saved_puts_the_job_back(world: World) -> None:
    world.python(*stops(NEWER))
    assert world.go() == 0
    assert world.calls == ["squeue --noheader --jobs=7 --format=%T", "scontrol requeue 7"]
    assert (world.end()["action"], world.end()["code"]) == ("requeue", 0)
    assert world.run.no_progress.read_text() == "0\n"
    assert not world.run.finished.exists()


@pytest.mark.parametrize(
    "state", ["COMPLETING", "CANCELLED", "TIMEOUT", "PREEMPTED", "PENDING", ""]
)
def test_only_a_running_job_is_put_back(world: World, state: str) -> None:
    world.says(state)
    world.python(*stops(NEWER))
    world.go()
    assert not [call for call in world.calls if call.startswith("scontrol")]
    end = world.end()
    assert end["action"] == "none"
    assert end["why"] == f"saved; Slurm says {state or 'nothing'}, so the watcher decides"


def test_what_was_not_saved_is_not_called_saved(world: World) -> None:
    world.says("COMPLETING")
    world.python(*stops())
    world.go()
    why = "nothing new was saved; Slurm says COMPLETING, so the watcher decides"
    assert world.end()["why"] == why


def test_a_cancelled_run_is_not_put_back(world: World) -> None:
    world.python(*stops('touch "$FSDPQ_RUN_DIR/cancelled.json"'))
    world.go()
    assert world.calls == []
    assert world.end()["why"] == "the run is cancelled"


def test_a_requeue_that_is_refused_is_tried_with_leave(world: World) -> None:
    world.refuses("requeue")
    world.python(*stops(NEWER))
    assert world.go() == 1
    assert world.calls[1:] == [
        "scontrol requeue 7",
        "scontrol update JobId=7 Requeue=1",
        "scontrol requeue 7",
    ]
    assert world.end()["action"] == "none"


def test_notices_before_any_new_step_are_counted(world: World) -> None:
    world.python(*stops())
    codes = [world.go() for _ in range(3)]
    assert codes == [0, 0, 1]
    assert [world.end(n)["action"] for n in (1, 2, 3)] == ["requeue", "requeue", "stop"]
    assert "stopped 3 times in a row" in world.end(3)["why"]
    assert world.calls.count("scontrol requeue 7") == 2


def test_a_newer_checkpoint_starts_the_count_anew(world: World) -> None:
    world.python(*stops())
    world.go()
    world.go()
    world.python(*stops(NEWER))
    world.go()
    world.python(*stops())
    assert world.go() == 0
    assert world.run.no_progress.read_text() == "1\n"


@pytest.mark.parametrize(
    ("lines", "code", "why"),
    [
        (["exit 3"], 3, "the workers ended without a status"),
        (["kill -KILL $$"], 137, "the workers ended without a status"),
        (
            ['echo \'{"outcome": "failed"}\' >"$FSDPQ_ATTEMPT_DIR/status.json"', "exit 1"],
            1,
            "the workers failed",
        ),
        (
            ['echo \'{"outcome": "no_checkpoint"}\' >"$FSDPQ_ATTEMPT_DIR/status.json"', "exit 1"],
            1,
            "the workers failed",
        ),
    ],
)
def test_every_other_end_is_left_to_the_watcher(
    world: World, lines: list[str], code: int, why: str
) -> None:
    world.python(*lines)
    assert world.go() == code
    assert world.calls == []
    assert (world.end()["action"], world.end()["why"], world.end()["code"]) == ("none", why, code)
    assert not world.run.finished.exists()


def test_a_script_that_knows_nothing_of_fsdpq_finishes_by_ending_well(world: World) -> None:
    world.python("true")
    assert world.go() == 0
    assert world.end()["action"] == "finished"
    assert world.run.finished.exists()
    assert store.read_json(world.run.finished) is not None


def test_one_that_ends_well_has_finished_whatever_it_heard(world: World) -> None:
    world.python('touch "$FSDPQ_ATTEMPT_DIR/notice.0"')
    assert world.go() == 0
    assert world.run.finished.exists()
    assert world.end()["action"] == "finished"


def test_the_end_mark_beats_the_exit_code(world: World) -> None:
    world.python('echo "{}" >"$FSDPQ_RUN_DIR/finished.json"', "exit 1")
    assert world.go() == 0
    assert world.end()["action"] == "finished"


@pytest.mark.parametrize("mark", ["finished", "cancelled"])
def test_a_run_that_is_over_is_not_started_again(world: World, mark: str) -> None:
    (world.run.root / f"{mark}.json").touch()
    world.python("touch $WORLD/started")
    assert world.go() == 0
    assert not (world.path / "started").exists()
    assert list(world.run.attempts.iterdir()) == []


def test_attempts_are_numbered_over_jobs_and_restarts(world: World) -> None:
    world.python("exit 1")
    world.go()
    world.go(SLURM_RESTART_COUNT="1")
    world.go(SLURM_JOB_ID="8")
    found = [store.read_json(world.run.attempt(n).start) or {} for n in (1, 2, 3)]
    assert [(f["job_id"], f["restart"]) for f in found] == [("7", 0), ("7", 1), ("8", 0)]
    assert all(abs(f["started_at"] - time.time()) < 60 for f in found)
    assert oct(world.run.attempt(1).root.stat().st_mode)[-3:] == "700"


def test_ports_differ_between_attempts_and_jobs(world: World) -> None:
    world.python('echo "$FSDPQ_PORT" >>"$WORLD/ports"', "exit 1")
    for job in ("7", "8", "1000000"):
        world.go(SLURM_JOB_ID=job)
        world.go(SLURM_JOB_ID=job)
    ports = [int(port) for port in (world.path / "ports").read_text().split()]
    assert len(set(ports)) == 6
    assert all(16384 <= port < 32768 for port in ports)


@pytest.mark.parametrize("command", ["scontrol"])
def test_a_node_list_that_cannot_be_read_ends_loudly(world: World, command: str) -> None:
    (world.path / command).write_text("#!/bin/bash\nexit 1\n")
    world.python("touch $WORLD/started")
    assert world.go() == 1
    assert not (world.path / "started").exists()


def test_what_the_scripts_write_is_json(world: World) -> None:
    world.python(*stops(NEWER))
    world.go()
    for path in (world.run.attempt(1).start, world.run.attempt(1).exit):
        json.loads(path.read_text())


def test_a_folder_for_temporary_files_that_is_not_there_is_passed_over(world: World) -> None:
    world.python("exit 0")
    assert world.go(TMPDIR="/no/such/folder") == 0
    assert world.run.finished.exists()


@pytest.mark.parametrize("name", ["SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV"])
def test_the_environment_reaches_the_nodes_however_the_script_was_submitted(
    world: World, name: str
) -> None:
    """Such as `sbatch --export=NONE script.sbatch`, by hand."""
    (world.path / "srun").write_text(f'#!/bin/bash\necho "${{{name}-unset}}" >"$WORLD/seen"\n')
    world.go(**{name: "NONE"})
    assert (world.path / "seen").read_text() == "unset\n"


# --- the site local ---------------------------------------------------------------------------


def test_on_one_machine_the_script_starts_itself_again(tmp_path: Path) -> None:
    world = make(tmp_path, "local", restart={"max_no_progress": 3})
    world.python(*stops())
    assert world.go() == 1
    assert world.calls == []
    assert [world.end(n)["action"] for n in (1, 2, 3)] == ["requeue", "requeue", "stop"]
    starts = [store.read_json(world.run.attempt(n).start) or {} for n in (1, 2, 3)]
    assert [start["restart"] for start in starts] == [0, 1, 2]
    assert len({start["job_id"] for start in starts}) == 1


@pytest.mark.parametrize(("before", "after"), [({}, ""), ({"PYTHONPATH": "/mine"}, ":/mine")])
def test_the_kept_program_comes_first_and_once(
    tmp_path: Path, before: dict[str, str], after: str
) -> None:
    """Also where an attempt inherits the environment of the one before."""
    world = make(tmp_path, "local", python_path=("/a b/$x*", "/c"), restart={"max_no_progress": 3})
    world.python('echo "$PYTHONPATH" >>"$WORLD/paths"', *stops())
    world.go(**before)
    paths = (tmp_path / "paths").read_text().splitlines()
    assert paths == [f"/a b/$x*:/c{after}"] * 3
