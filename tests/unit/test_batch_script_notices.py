"""Notices to the batch shell: signals, marks while it starts, nodes that a cloud takes away."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from .batch_shell import NEWER, STOPPED, World, make, stops

pytestmark = pytest.mark.processes

# --- signals ----------------------------------------------------------------------------------

# A worker that stops when the note appears, as the runtime does.
LISTENS = [
    'touch "$WORLD/listens"',
    'until [ -e "$FSDPQ_NOTICE_FILE" ]; do sleep 0.02; done',
    f"echo '{STOPPED}' >\"$FSDPQ_ATTEMPT_DIR/status.json\"",
    NEWER,
]


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_notice_to_the_batch_shell_reaches_the_workers(
    world: World, number: signal.Signals
) -> None:
    world.python(*LISTENS)
    process = world.start()
    world.wait_for("listens")
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert world.end()["action"] == "requeue"
    name = number.name.removeprefix("SIG")
    assert (world.run.attempt(1).root / "notice.batch").read_text().startswith(f"{name} ")
    assert (world.run.attempt(1).root / "notice.0").exists()


def test_signals_in_a_row_do_not_end_the_wait(world: World) -> None:
    world.python(*LISTENS[:2], "sleep 0.5", *LISTENS[2:])
    process = world.start()
    world.wait_for("listens")
    for _ in range(5):
        process.send_signal(signal.SIGUSR2)
        time.sleep(0.05)
    process.communicate(timeout=30)
    assert (process.returncode, world.end()["action"]) == (0, "requeue")


# --- before the nodes start -------------------------------------------------------------------


def test_a_run_that_is_cancelled_while_it_starts_does_not_start(tmp_path: Path) -> None:
    """`scancel --signal` finds no step yet, so nobody would hear it."""
    world = make(tmp_path, "slurm", modules=["slow"])
    world.python('touch "$WORLD/trained"')
    module = 'module() { touch "$FSDPQ_RUN_DIR_"/cancelled.json; }'
    (tmp_path / "env.sh").write_text(module.replace("$FSDPQ_RUN_DIR_", str(world.run.root)))
    assert world.go(BASH_ENV=str(tmp_path / "env.sh")) == 75
    assert not (tmp_path / "trained").exists()
    assert "scontrol" not in "".join(world.calls)


def test_a_notice_before_the_nodes_start_puts_the_job_back(tmp_path: Path) -> None:
    world = make(tmp_path, "slurm", modules=["slow"])
    world.python('touch "$WORLD/trained"')
    (tmp_path / "env.sh").write_text("module() { kill -USR2 $$; }\n")
    world.go(BASH_ENV=str(tmp_path / "env.sh"))
    assert not (tmp_path / "trained").exists()
    assert world.end()["action"] == "requeue"
    assert "scontrol requeue 7" in world.calls


# --- a cloud takes a node away ----------------------------------------------------------------

RECLAIMED = ['mkdir "$FSDPQ_ATTEMPT_DIR/reclaims"', *stops()]


@pytest.fixture
def cloudy(tmp_path: Path) -> World:
    """A cluster in a cloud, where sleeping takes no time."""
    world = make(tmp_path, "slurm", at={"cloud": "aws"})
    # node.sh waits in tenths of a second for its monitor to end, now and then; that is not asked.
    told = '[ "$1" = 0.1 ] || echo "sleep $*" >>"$WORLD/calls"'
    sleeper = f"#!/bin/bash\n{told}\nexec /bin/sleep 0.02\n"
    (tmp_path / "sleep").write_text(sleeper)
    (tmp_path / "sleep").chmod(0o755)
    return world


def test_a_reclaim_that_was_saved_puts_the_job_back_at_once(cloudy: World) -> None:
    cloudy.python(*RECLAIMED, "/bin/" + NEWER)
    assert cloudy.go() == 0
    assert cloudy.calls == ["squeue --noheader --jobs=7 --format=%T", "scontrol requeue 7"]


def test_a_job_that_got_the_doomed_node_again_lets_it_go_first(cloudy: World) -> None:
    """Otherwise it would come back to it until its restarts are used up."""
    cloudy.python(*RECLAIMED)
    assert cloudy.go() == 0
    assert cloudy.calls == [
        "sleep 120",
        "squeue --noheader --jobs=7 --format=%T",
        "scontrol requeue 7",
    ]


def test_a_node_that_goes_meanwhile_is_left_to_slurm(cloudy: World) -> None:
    cloudy.says("COMPLETING")
    cloudy.python(*RECLAIMED)
    cloudy.go()
    assert cloudy.calls == ["sleep 120", "squeue --noheader --jobs=7 --format=%T"]
    assert cloudy.end()["action"] == "none"


def test_a_signal_ends_that_wait(cloudy: World) -> None:
    cloudy.python(*RECLAIMED)
    (cloudy.path / "sleep").write_text('#!/bin/bash\ntouch "$WORLD/waits"\nexec /bin/sleep 600\n')
    process = cloudy.start()
    cloudy.wait_for("waits")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert cloudy.end()["action"] == "requeue"


def test_other_notices_are_not_waited_for(cloudy: World) -> None:
    cloudy.python(*stops())
    cloudy.go()
    assert "sleep 120" not in cloudy.calls
