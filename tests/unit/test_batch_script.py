"""The batch shell's part: when it puts its job back, and when it leaves that to others.

The rendered scripts run whole; srun, scontrol, squeue and Python are a few lines of bash each.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.script import render
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store

from .builders import site, spec

pytestmark = pytest.mark.processes
FAKES = {
    "srun": 'while [ "$1" != bash ]; do shift; done\nexec "$@"',
    "scontrol": 'if [ "$1" = show ]; then echo n1; exit; fi\n'
    'echo "scontrol $*" >>"$WORLD/calls"\nexit "$(cat "$WORLD/$1.rc" 2>/dev/null || echo 0)"',
    "squeue": 'echo "squeue $*" >>"$WORLD/calls"\ncat "$WORLD/state"',
    "python": '[ "$2" != orchestrator.monitor ] || exit 0\n'
    'if [ "$2" = orchestrator.preflight ]; then\n'
    '[ ! -e "$WORLD/preflight.sh" ] || source "$WORLD/preflight.sh"\nexit\nfi\n'
    'source "$WORLD/python.sh"',
}
STOPPED = '{"outcome": "stopped", "first_step": 30, "step": 42, "saved_step": 42}'


@dataclass
class World:
    """A run directory with scripts, the fakes, and what they are told to do."""

    path: Path
    run: RunLayout

    def python(self, *lines: str) -> None:
        """Let the worker do this."""
        (self.path / "python.sh").write_text("\n".join(lines) + "\n")

    def says(self, state: str) -> None:
        """Let squeue say this of the job."""
        (self.path / "state").write_text(f"{state}\n")

    def refuses(self, command: str) -> None:
        (self.path / f"{command}.rc").write_text("1\n")

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.path}:/usr/bin:/bin",
            "WORLD": str(self.path),
            "TMPDIR": str(self.path),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_JOB_NUM_NODES": "1",
            **more,
        }

    def start(self, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", self.run.script],
            env=self.environment(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def go(self, **more: str) -> int:
        """Run the script to its end and return its exit code."""
        process = self.start(**more)
        process.communicate(timeout=30)
        return process.returncode

    @property
    def calls(self) -> list[str]:
        path = self.path / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def end(self, attempt: int = 1) -> dict[str, Any]:
        return store.read_json(self.run.attempt(attempt).exit) or {}


def make(
    tmp_path: Path,
    scheduler: str,
    *,
    at: dict[str, Any] | None = None,
    python_path: tuple[str, ...] = (),
    **job: Any,
) -> World:
    for name, body in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    run = RunLayout(tmp_path / "runs" / "llama")
    plan = planning.plan(
        spec(python=str(tmp_path / "python"), **job),
        site(scheduler=scheduler, **(at or {})),
        layout=run,
        cwd=tmp_path,
        python="",
    )
    store.create(run, render(dataclasses.replace(plan, python_path=python_path)))
    world = World(tmp_path, run)
    world.says("RUNNING")
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make(tmp_path, "slurm")


def stops(*more: str) -> list[str]:
    """Lines of a worker that hears a notice, saves a checkpoint and stops."""
    return [
        'touch "$FSDPQ_ATTEMPT_DIR/notice.0"',
        f"echo '{STOPPED}' >\"$FSDPQ_ATTEMPT_DIR/status.json\"",
        *more,
    ]


NEWER = 'sleep 0.02; mkdir -p "$FSDPQ_CHECKPOINT_DIR"; touch "$FSDPQ_CHECKPOINT_DIR/LATEST"'


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


# --- notices ----------------------------------------------------------------------------------

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
    while not (world.path / "listens").exists():
        time.sleep(0.01)
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
    while not (world.path / "listens").exists():
        time.sleep(0.01)
    for _ in range(5):
        process.send_signal(signal.SIGUSR2)
        time.sleep(0.05)
    process.communicate(timeout=30)
    assert (process.returncode, world.end()["action"]) == (0, "requeue")


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


def test_what_the_scripts_write_is_json(world: World) -> None:
    world.python(*stops(NEWER))
    world.go()
    for path in (world.run.attempt(1).start, world.run.attempt(1).exit):
        json.loads(path.read_text())


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


def test_a_folder_for_temporary_files_that_is_not_there_is_passed_over(world: World) -> None:
    world.python("exit 0")
    assert world.go(TMPDIR="/no/such/folder") == 0
    assert world.run.finished.exists()


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
    while not (cloudy.path / "waits").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert cloudy.end()["action"] == "requeue"


def test_other_notices_are_not_waited_for(cloudy: World) -> None:
    cloudy.python(*stops())
    cloudy.go()
    assert "sleep 120" not in cloudy.calls


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
    while not (world.path / "checks").exists():
        time.sleep(0.01)
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


# --- a network that is less than the job requires -----------------------------------------------


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


@pytest.mark.parametrize("name", ["SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV"])
def test_the_environment_reaches_the_nodes_however_the_script_was_submitted(
    world: World, name: str
) -> None:
    """Such as `sbatch --export=NONE script.sbatch`, by hand."""
    (world.path / "srun").write_text(f'#!/bin/bash\necho "${{{name}-unset}}" >"$WORLD/seen"\n')
    world.go(**{name: "NONE"})
    assert (world.path / "seen").read_text() == "unset\n"
