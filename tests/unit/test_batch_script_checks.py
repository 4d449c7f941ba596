"""Nodes that do not pass their check, and networks that are less than the job requires."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from .batch_shell import World, make, stops

pytestmark = pytest.mark.processes

# --- the check of the node --------------------------------------------------------------------

UNFIT = [
    'mkdir -p "$FSDPQ_ATTEMPT_DIR/preflight"',
    'echo \'{"node": "n1", "ok": false}\' >"$FSDPQ_ATTEMPT_DIR/preflight/node-0.json"',
]
FIT = [UNFIT[0], UNFIT[1].replace("false", "true")]


def checks(world: World, *lines: str) -> None:
    """Let the check of the node do this, and the worker say that it ran."""
    (world.path / "preflight.sh").write_text("\n".join(lines) + "\n")
    world.python('touch "$WORLD/trained"')


def test_an_unfit_node_starts_no_worker_and_is_left_to_the_watcher(world: World) -> None:
    checks(world, *UNFIT, "exit 76")
    assert world.go() == 76
    assert not (world.path / "trained").exists()
    assert world.calls == []
    assert (world.end()["action"], world.end()["code"]) == ("none", 76)
    assert world.end()["why"] == "a node did not pass its check"


def test_an_unfit_node_says_so_where_its_check_could_not_write(world: World) -> None:
    checks(world, 'touch "$FSDPQ_ATTEMPT_DIR/notice.1"', "exit 76")
    assert world.go() == 76
    assert (world.run.attempt(1).root / "node-0.exit").read_text() == "76\n"
    assert world.calls == []
    assert world.end()["why"] == "a node did not pass its check"


def test_the_sigterm_that_ends_the_other_nodes_is_no_notice(world: World) -> None:
    checks(world, *UNFIT, 'touch "$FSDPQ_ATTEMPT_DIR/notice.1"', "exit 76")
    assert world.go() == 76
    assert world.calls == []
    assert world.end()["why"] == "a node did not pass its check"


@pytest.mark.parametrize("code", [0, 1, 2, 139])
def test_a_check_that_passes_or_breaks_lets_the_workers_start(world: World, code: int) -> None:
    checks(world, *FIT, f"exit {code}")
    assert world.go() == 0
    assert (world.path / "trained").exists()
    assert world.end()["action"] == "finished"


@pytest.mark.parametrize("to", ["batch", "node"])
def test_a_notice_during_the_check_wins(world: World, to: str) -> None:
    checks(
        world,
        'trap "exit 75" TERM USR2',
        'touch "$WORLD/checks"',
        "for i in {1..1500}; do sleep 0.02; done",
        *UNFIT,
        "exit 76",
    )
    process = world.start()
    world.wait_for("checks")
    if to == "batch":
        process.send_signal(signal.SIGUSR2)
    else:  # the SIGTERM that slurmstepd sends to the tasks of a step
        node = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        subprocess.run(["kill", "-TERM", *node], check=True)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert not (world.path / "trained").exists()
    assert world.end()["action"] == "requeue"
    assert "scontrol requeue 7" in world.calls


def test_a_check_that_is_off_is_not_started(tmp_path: Path) -> None:
    world = make(tmp_path, "slurm", preflight=False)
    checks(world, 'touch "$WORLD/checked"')
    assert world.go() == 0
    assert not (tmp_path / "checked").exists()


# --- a network that is less than the job requires ---------------------------------------------


def proven(stop: str) -> list[str]:
    """Let the monitor have judged the network, and the workers stop for a notice and save."""
    fabric = f'{{"fabric": "socket_fallback", "stop": {stop}, "why": "over sockets"}}'
    return stops(f"echo '{fabric}' >\"$FSDPQ_ATTEMPT_DIR/fabric.json\"")


def requiring(tmp_path: Path, *, required: bool) -> World:
    at = {"fabric": {"kind": "infiniband"}}
    world = make(tmp_path, "slurm", at=at, nodes=2, require_rdma=required)
    world.says("RUNNING")
    return world


def test_a_job_without_the_network_that_it_requires_is_not_put_back(tmp_path: Path) -> None:
    world = requiring(tmp_path, required=True)
    world.python(*proven("true"))
    assert world.go() == 1
    assert world.end()["action"] == "none"
    assert "less than the job requires" in world.end()["why"]
    assert not [call for call in world.calls if "requeue" in call]


def test_one_with_that_network_is_put_back_after_a_notice(tmp_path: Path) -> None:
    world = requiring(tmp_path, required=True)
    world.python(*proven("false"))
    assert world.go() == 0
    assert world.end()["action"] == "requeue"


def test_a_job_that_requires_nothing_is_put_back_whatever_the_network(tmp_path: Path) -> None:
    world = requiring(tmp_path, required=False)
    world.python(*proven("false"))
    assert world.go() == 0
