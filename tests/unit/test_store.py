from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RunError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import claims, store
from orchestrator.runstore.claims import CLAIM_STALE_S

from .builders import make_run, plan


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    return make_run(tmp_path / "runs" / "llama")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- creating ---------------------------------------------------------------------------------


def test_a_run_appears_whole_and_private(weird_path: Path) -> None:
    layout = RunLayout(weird_path / "runs" / "llama")
    store.create(layout, {"plan.json": "{}", "node.sh": "\u00e9\n"})
    assert layout.node_script.read_bytes() == b"\xc3\xa9\n"
    folders = [layout.root, layout.attempts, layout.checkpoints, layout.claims, layout.submitit]
    assert [mode(folder) for folder in folders] == [0o700] * 5
    assert mode(layout.plan) == 0o600
    assert [path.name for path in layout.root.parent.iterdir()] == ["llama"]


@pytest.mark.parametrize("kind", ["run", "empty folder", "file", "dangling link"])
def test_a_taken_name_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    layout = RunLayout(tmp_path / "llama")
    match kind:
        case "run":
            store.create(layout, {"plan.json": "old"})
        case "empty folder":
            layout.root.mkdir()
        case "file":
            layout.root.write_text("old")
        case _:
            layout.root.symlink_to("/nowhere/at/all")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunError) as caught:
        store.create(layout, {"plan.json": "new"})
    assert "fsdpq requeue llama" in str(caught.value)
    assert "--set name=" in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert kind != "run" or layout.plan.read_text() == "old"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunError, match="cannot be created"):
        store.create(RunLayout(tmp_path / "runs" / "llama"), {})


def test_nothing_is_left_of_a_run_that_could_not_be_written(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path / "llama")
    with pytest.raises(RunError, match="cannot be created"):
        store.create(layout, {"plan.json": "{}", "no/such/folder": "x"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_of_many_that_create_one_wins(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from orchestrator import errors\n"
        "from orchestrator.rundir import layout; from orchestrator.runstore import store\n"
        "sys.stdin.readline()\n"
        "try: store.create(layout.RunLayout(Path(sys.argv[1])), {'plan.json': sys.argv[2]})\n"
        "except errors.RunError: print('taken')\n"
        "else: print('mine')\n"
    )
    assert sorted(race(script, tmp_path / "llama", 3)) == ["mine", "taken", "taken"]
    assert [path.name for path in tmp_path.iterdir()] == ["llama"]


def race(script: str, path: Path, count: int) -> list[str]:
    """Run ``script`` in ``count`` processes that start at the same time; return what each said."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for number in range(count)
    ]
    time.sleep(0.5)
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate(timeout=30)[0].strip() for process in processes]


def test_discarding_leaves_nothing(run: RunLayout) -> None:
    store.discard(run)
    assert not run.root.exists()
    store.discard(run)


# --- finding ----------------------------------------------------------------------------------


def test_a_run_is_found_by_name_and_by_path(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = run.root.parent
    assert store.find("llama", runs=runs) == run
    assert store.find(str(run.root), runs=Path("/nowhere")) == run
    monkeypatch.chdir(runs.parent)
    assert store.find("runs/llama", runs=Path("elsewhere")) == run
    assert store.find("llama", runs=Path("runs")) == run


@pytest.mark.parametrize("name", ["nope", "", ".", "..", "llama/attempts", "llam", "LLAMA"])
def test_a_run_that_is_not_there_lists_those_that_are(run: RunLayout, name: str) -> None:
    with pytest.raises(RunError, match="Runs there: llama"):
        store.find(name, runs=run.root.parent)


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Runs there: none"):
        store.find("x", runs=tmp_path / "runs")
    assert store.all_runs(tmp_path / "runs") == []


def test_only_folders_with_a_plan_are_runs(run: RunLayout) -> None:
    runs = run.root.parent
    make_run(runs / "b")
    make_run(runs / ".c.new-7")
    (runs / "notes").mkdir()
    (runs / "a.txt").touch()
    assert [layout.name for layout in store.all_runs(runs)] == ["b", "llama"]


def test_the_plan_is_read_back(run: RunLayout) -> None:
    expected = plan(run="llama", run_dir=str(run.root))
    assert store.load_plan(run) == expected


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", "null", "{}", '{"run": "x"}', '{"directives": 5, "env": []}', "\x00"],
)
def test_a_plan_that_does_not_read(run: RunLayout, text: str) -> None:
    run.plan.write_text(text)
    with pytest.raises(RunError, match=r"plan\.json: cannot be read"):
        store.load_plan(run)


def test_a_plan_with_a_key_of_another_version(run: RunLayout) -> None:
    data: dict[str, Any] = {**plan().to_json(), "new_key": 1}
    run.plan.write_text(json.dumps(data))
    with pytest.raises(RunError, match="new_key"):
        store.load_plan(run)
    assert LaunchPlan.from_json(plan().to_json()) == plan()


# --- events -----------------------------------------------------------------------------------


def test_events_are_read_in_the_order_they_were_written(run: RunLayout) -> None:
    assert store.events(run) == []
    store.append(run, "created", site="here")
    store.append(run, "submitted", job_id="7", why="\u00e9\n\u2028 {}")
    first, second = store.events(run)
    assert (first["kind"], first["site"]) == ("created", "here")
    assert second["why"] == "\u00e9\n\u2028 {}"
    assert abs(first["at"] - time.time()) < 60
    assert mode(run.events) == 0o600
    assert run.events.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize(
    "torn",
    [b'{"at": 1, "kind": "subm', b"{", b"\xff\xfe", b"null\n", b"[]\n", b"7\n", b"\n\n", b"\0"],
)
def test_a_torn_line_takes_no_other_with_it(run: RunLayout, torn: bytes) -> None:
    store.append(run, "before")
    with run.events.open("ab") as file:
        file.write(torn)
    assert [event["kind"] for event in store.events(run)] == ["before"]
    store.append(run, "after")
    assert [event["kind"] for event in store.events(run)] == ["before", "after"]


def test_events_of_many_writers_do_not_mix(run: RunLayout) -> None:
    def write(number: int) -> None:
        for count in range(50):
            store.append(run, "x" * 500, writer=number, count=count)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = store.events(run)
    for number in range(4):
        assert [e["count"] for e in events if e["writer"] == number] == list(range(50))


def test_an_event_that_cannot_be_written_is_an_error(run: RunLayout) -> None:
    run.events.mkdir()
    with pytest.raises(RunError, match="cannot be written"):
        store.append(run, "submitted")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_an_error(run: RunLayout) -> None:
    run.events.symlink_to("/dev/full")
    with pytest.raises(RunError, match="No space left"):
        store.append(run, "submitted")


# --- files that others read -------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "\x00", '{"a": '])
def test_json_that_is_no_object_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert store.read_json(tmp_path / "x.json") is None


def test_json_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    assert store.read_json(tmp_path / "x.json") is None
    assert store.read_json(tmp_path) is None
    assert store.read_lines(tmp_path) == []


def test_replacing_leaves_one_file(tmp_path: Path) -> None:
    store.replace(tmp_path / "x", "old")
    store.replace(tmp_path / "x", "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("x", "new")]


def test_the_cancel_mark(run: RunLayout) -> None:
    store.mark_cancelled(run, by="alice")
    mark = store.read_json(run.cancelled)
    assert mark is not None
    assert mark["by"] == "alice"
    assert abs(mark["at"] - time.time()) < 60


def test_writing_files_makes_the_folder(tmp_path: Path) -> None:
    store.write_files(tmp_path / "a" / "b", {"x": "1"})
    store.write_files(tmp_path / "a" / "b", {"x": "2"})
    assert (tmp_path / "a" / "b" / "x").read_text() == "2"
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written"):
        store.write_files(tmp_path / "file" / "b", {"x": "1"})


# --- claims -----------------------------------------------------------------------------------

# Of another process on this host, which is gone; of one on another host; of one that is here.
HERE = {"host": os.uname().nodename, "pid": os.getppid(), "start": None, "at": 0}
GONE = {**HERE, "pid": 2**22 + 1, "start": "1"}
RECYCLED = {**HERE, "start": "1"}
THERE = {**HERE, "host": "another-host"}


def claimed(run: RunLayout, owner: dict[str, Any] | str, *, age_s: float = 0) -> Path:
    """Leave the claim of somebody else."""
    path = run.claims / "key.0"
    path.write_text(owner if isinstance(owner, str) else json.dumps(owner))
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def alive() -> dict[str, Any]:
    """Return the owner that the parent of this process would be."""
    return {**HERE, "start": claims._start(os.getppid())}


def names(run: RunLayout) -> list[str]:
    return sorted(path.name for path in run.claims.iterdir())


def test_a_claim_is_private_and_says_whose_it_is(run: RunLayout) -> None:
    assert claims.claim(run, "7.0.1-0")
    owner = store.read_json(run.claims / "7.0.1-0.0")
    assert owner is not None
    assert (owner["host"], owner["pid"]) == (os.uname().nodename, os.getpid())
    assert mode(run.claims / "7.0.1-0.0") == 0o600


@pytest.mark.parametrize("owner", [alive(), THERE, "", "{", "[]", '{"host": '])
def test_a_claim_of_somebody_who_lives_or_still_writes_is_theirs(
    run: RunLayout, owner: dict[str, Any] | str
) -> None:
    claimed(run, owner, age_s=CLAIM_STALE_S - 60)
    assert not claims.claim(run, "key")
    assert names(run) == ["key.0"]


@pytest.mark.parametrize("owner", [GONE, RECYCLED])
def test_a_claim_whose_owner_is_gone_passes_on(run: RunLayout, owner: dict[str, Any]) -> None:
    claimed(run, owner)
    assert claims.claim(run, "key")
    assert names(run) == ["key.0", "key.1"]


@pytest.mark.parametrize("owner", [alive(), THERE, "", "{"])
def test_a_claim_that_is_too_old_passes_on(run: RunLayout, owner: dict[str, Any] | str) -> None:
    claimed(run, owner, age_s=CLAIM_STALE_S + 60)
    assert claims.claim(run, "key")
    assert names(run) == ["key.0", "key.1"]


def test_generations_are_walked(run: RunLayout) -> None:
    claimed(run, GONE)
    (run.claims / "key.1").write_text(json.dumps(GONE))
    (run.claims / "key.2").write_text(json.dumps(THERE))
    assert not claims.claim(run, "key")
    (run.claims / "key.2").write_text(json.dumps(GONE))
    assert claims.claim(run, "key")
    assert names(run)[-1] == "key.3"


def test_who_holds_a_claim_may_ask_again(run: RunLayout) -> None:
    # It claimed, saw that the scheduler did not answer, did nothing, and looks again.
    assert claims.claim(run, "key")
    assert claims.claim(run, "key")
    assert names(run) == ["key.0"]


def test_an_old_claim_of_ones_own_is_taken_anew(run: RunLayout) -> None:
    # Another host takes it for stale at any moment, so the next generation decides.
    assert claims.claim(run, "key")
    then = time.time() - CLAIM_STALE_S / 2 - 1
    os.utime(run.claims / "key.0", (then, then))
    assert claims.claim(run, "key")
    assert names(run) == ["key.0", "key.1"]


def test_keys_do_not_meet(run: RunLayout) -> None:
    claimed(run, THERE)
    assert claims.claim(run, "key.0")
    assert claims.claim(run, "other")


CLAIM = (
    "import sys; from pathlib import Path; from orchestrator.rundir import layout\n"
    "from orchestrator.runstore import claims\n"
    "sys.stdin.readline()\n"
    "print(claims.claim(layout.RunLayout(Path(sys.argv[1])), 'key'), flush=True)\n"
    "sys.stdin.readline()\n"
)


@pytest.mark.processes
@pytest.mark.parametrize("stale", [False, True])
def test_of_many_that_claim_one_acts(run: RunLayout, stale: bool) -> None:
    if stale:
        claimed(run, GONE)
    # Each waits at its end until all have claimed: a claim of one that ended would pass on.
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(run.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(3)
    ]
    time.sleep(0.5)
    said = []
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout
        said.append(process.stdout.readline().strip())
    for process in processes:
        process.communicate("\n", timeout=30)
    assert sorted(said) == ["False", "False", "True"]


def test_what_cannot_be_written_leaves_no_empty_file(
    run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty claim would bind all watchers for ten minutes."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fdopen", full)
    with pytest.raises(OSError, match="No space"):
        claims.claim(run, "7.0")
    assert list(run.claims.iterdir()) == []
    with pytest.raises(RunError, match="No space left"):
        store.mark_cancelled(run, by="me")
    assert not list(run.root.glob(".cancelled*"))


def test_runs_of_others_are_passed_over(run: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(run.root.parent / "private")
    real = Path.is_file

    def is_file(path: Path) -> bool:
        if "private" in str(path):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert [layout.name for layout in store.all_runs(run.root.parent)] == [run.name]
