"""What a run keeps of its program, with git and without it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator import snapshot
from orchestrator.errors import RunError, SpecError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import facts, store
from orchestrator.snapshot import copying, git, imports, tree, walk
from orchestrator.snapshot.patterns import matches
from orchestrator.snapshot.tree import Entry, Tree
from orchestrator.spec.code import CodeSpec
from orchestrator.submitting import launch, starting

from .builders import write_job
from .repository import commit, make_repository, write
from .repository import git as run_git

processes = pytest.mark.processes


def find(script: Path, **code: Any) -> Tree:
    return tree.find(script.resolve(), CodeSpec(**code))


def kept(found: Tree, to: Path) -> dict[str, str]:
    """Copy the tree and return what was copied."""
    copying.copy(found.root, found.entries, to)
    files = [path for path in to.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(to)): path.read_text() for path in files}


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("a.py", "a.py", True),
        ("a.py", "b/a.py", False),
        ("*.py", "b/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "b/c/a.py", True),
        ("b", "b/c/a.py", True),
        ("b/*", "b/c/a.py", True),
        ("b/*.py", "b/c/a.py", False),
        ("b/**/a.py", "b/a.py", True),
        ("b", "bc/a.py", False),
        ("[ab].py", "b.py", True),
        ("A.py", "a.py", False),
        ("a\nb", "a\nb", True),
    ],
)
def test_patterns(pattern: str, path: str, found: bool) -> None:
    assert matches(pattern, path) is found


# --- with git ---------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project", train="1", lib__model="2")


@processes
def test_tracked_files_as_they_are_in_the_work_tree(project: Path, tmp_path: Path) -> None:
    write(project, "train.py", "edited")
    write(project, ".env", "SECRET=1")
    write(project, "data/corpus.txt", "untracked")
    found = find(project / "train.py")
    assert kept(found, tmp_path / "code") == {"train.py": "edited", "lib/model.py": "2"}
    assert (found.kind, found.head.branch) == ("git", "main")
    assert found.head.commit == run_git(project, "rev-parse", "HEAD")
    assert found.notes == ()


@processes
def test_names_that_are_hard_to_read(project: Path, tmp_path: Path) -> None:
    names = ["a b", "line\nbreak", '"quo\'te"', "-rf", "*", "gr\u00fc\u00df", " lead", "tab\t"]
    hostile = [*names, os.fsdecode(b"latin\xe9")]
    for name in hostile:
        write(project, f"{name}/{name}.py", name[:1])
    commit(project)
    copied = kept(find(project / "train.py"), tmp_path / "code")
    assert {name: copied[f"{name}/{name}.py"] for name in hostile} == {n: n[:1] for n in hostile}


@processes
def test_the_variables_of_a_git_hook_are_not_heard(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repository(tmp_path / "other", secret="x")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert set(find(project / "train.py").entries) == {"train.py", "lib/model.py"}


@processes
def test_nothing_of_the_repository_runs(project: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    program = write(tmp_path, "program", f"#!/bin/sh\ntouch {canary}\ncat\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "core.pager", "diff.x.textconv"):
        run_git(project, "config", key, str(program))
    run_git(project, "config", "filter.lfs.clean", str(program))
    run_git(project, "config", "filter.lfs.required", "true")
    write(project, ".git/hooks/post-index-change", program.read_text()).chmod(0o755)
    write(project, ".git/info/attributes", "lib/* diff=x\n*.py filter=lfs\n")
    write(project, "lib/model.py", "edited")
    assert "lib/model.py" in find(project / "train.py").entries
    assert b"+edited" in git.diff(project)
    assert not canary.exists()


@processes
def test_extras_and_excludes(project: Path, tmp_path: Path) -> None:
    write(project, "conf/a.json", "{}")
    write(project, "conf/deep/b.json", "{}")
    write(project, "conf/deep/c.txt", "")
    write(project, "ext.so", "elf")
    code = {"extras": ["conf/**/*.json", "ext.so"], "exclude": ["lib"]}
    found = find(project / "train.py", **code)
    assert set(found.entries) == {"train.py", "ext.so", "conf/a.json", "conf/deep/b.json"}
    assert found.excluded == ("lib/model.py",)
    assert set(find(project / "train.py", extras=["conf"]).entries) >= {"conf/deep/c.txt"}


@processes
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ({"extras": ["nope.json"]}, r"code\.extras: nothing matches 'nope.json'"),
        ({"exclude": ["*.py"]}, r"code\.exclude: takes away the script itself"),
        ({"max_files": 1}, r"2 files.*allowed are 1 \(code\.max_files\)"),
    ],
)
def test_what_does_not_fit_is_refused(project: Path, code: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        find(project / "train.py", **code)


@processes
def test_what_is_too_large_is_named(project: Path) -> None:
    with (project / "weights.bin").open("wb") as file:
        file.truncate(3 << 20)
    commit(project)
    with pytest.raises(SpecError) as caught:
        find(project / "train.py", max_mib=2)
    said = str(caught.value)
    assert "weights.bin (3.0 MiB)" in said
    assert "code: {exclude: [...]}" in said
    assert "--live-code" in said
    assert "weights.bin" not in find(project / "train.py", max_mib=2, exclude=["*.bin"]).entries


@processes
def test_a_module_that_git_does_not_track_is_noted(project: Path) -> None:
    write(project, "lib/new.py", "")
    write(project, "elsewhere/other.py", "")
    found = find(project / "train.py")
    assert found.untracked == ("lib/new.py",)
    assert "does not track: lib/new.py; if the program imports it, `git add`" in found.notes[0]
    assert find(project / "train.py", extras=["lib/new.py"]).notes == ()


@processes
def test_a_script_that_git_does_not_track_brings_its_folder(project: Path) -> None:
    write(project, "new/run.py", "")
    write(project, "new/helper.py", "")
    write(project, "new/api_token.json", "")
    found = find(project / "new" / "run.py")
    assert set(found.entries) == {"train.py", "lib/model.py", "new/run.py", "new/helper.py"}
    assert "git does not track new/run.py" in found.notes[0]


@processes
def test_what_is_gone_is_told(project: Path) -> None:
    (project / "lib" / "model.py").unlink()
    found = find(project / "train.py")
    assert (set(found.entries), found.missing) == ({"train.py"}, ("lib/model.py",))


@processes
def test_a_folder_that_became_a_link_is_not_followed(project: Path, tmp_path: Path) -> None:
    shutil.rmtree(project / "lib")
    write(tmp_path, "secrets/model.py", "outside")
    (project / "lib").symlink_to(tmp_path / "secrets")
    found = find(project / "train.py", extras=["lib"])
    assert found.missing == ("lib/model.py",)
    assert found.live_links == ("lib",)


@processes
def test_links(project: Path, tmp_path: Path) -> None:
    write(tmp_path, "outside/shared.py", "shared")
    (project / "inside.py").symlink_to("lib/model.py")
    (project / "absolute.py").symlink_to(project / "lib" / "model.py")
    (project / "folder").symlink_to("lib")
    (project / "lib" / "up.py").symlink_to("../train.py")
    (project / "shared.py").symlink_to(tmp_path / "outside" / "shared.py")
    (project / "data").symlink_to(tmp_path / "outside")
    (project / "dangling").symlink_to("nowhere")
    (project / "loop").symlink_to("loop")
    commit(project)
    found = find(project / "train.py")
    code = tmp_path / "code"
    copied = kept(found, code)
    links = {p.name: str(p.readlink()) for p in code.rglob("*") if p.is_symlink()}
    assert links == {
        "inside.py": "lib/model.py",
        "absolute.py": "lib/model.py",
        "folder": "lib",
        "up.py": "../train.py",
        "data": str(tmp_path / "outside"),
        "dangling": str(project / "nowhere"),
        "loop": "loop",
    }
    assert copied["shared.py"] == "shared"
    assert (code / "lib" / "up.py").resolve() == code / "train.py"
    assert found.live_links == ("dangling", "data")


@processes
def test_submodules(project: Path, tmp_path: Path) -> None:
    make_repository(tmp_path / "library", util="3")
    run_git(project, "submodule", "--quiet", "add", str(tmp_path / "library"), "third")
    commit(project)
    write(project, "third/util.py", "edited")
    assert set(find(project / "train.py").entries) == {
        *("train.py", "lib/model.py", ".gitmodules", "third/util.py")
    }
    canary = tmp_path / "canary"
    program = write(tmp_path, "program", f"#!/bin/sh\ntouch {canary}\ncat\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "diff.x.textconv"):
        run_git(project / "third", "config", key, str(program))
    write(project, ".git/modules/third/info/attributes", "* diff=x\n")
    said = git.diff(project, find(project / "train.py").submodules)
    assert b"+++ b/third/util.py" in said
    assert b"+edited" in said
    assert not canary.exists()
    inner = find(project / "third" / "util.py")
    assert (inner.root, set(inner.entries)) == (project / "third", {"util.py"})
    assert inner.head.commit == run_git(project / "third", "rev-parse", "HEAD")
    run_git(tmp_path, "clone", "--quiet", str(project), "bare-modules")
    found = find(tmp_path / "bare-modules" / "train.py")
    assert found.uninitialised == ("third",)
    assert "submodules without files: third" in found.notes[0]


@processes
def test_a_further_work_tree_and_packed_refs(project: Path, tmp_path: Path) -> None:
    run_git(project, "worktree", "add", "--quiet", "-b", "deep/branch", str(tmp_path / "second"))
    run_git(project, "pack-refs", "--all")
    found = find(tmp_path / "second" / "train.py")
    assert found.head == git.Head(run_git(project, "rev-parse", "HEAD"), "deep/branch")
    run_git(project, "checkout", "--quiet", "--detach")
    assert git.head(project) == git.Head(run_git(project, "rev-parse", "HEAD"), None)


@processes
def test_a_repository_whose_work_tree_is_elsewhere(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    run_git(project, "config", "core.worktree", str(tmp_path / "elsewhere"))
    found = find(project / "train.py")
    assert (found.kind, set(found.entries)) == ("folder", {"train.py", "lib/model.py"})


@processes
def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "--quiet", "--initial-branch=main", "fresh")
    script = write(tmp_path, "fresh/train.py")
    assert find(script).head == git.Head(None, "main")


@processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_repository_is_kept_without_git(project: Path) -> None:
    os.chown(project, 54321, -1)
    write(project, "conf.yaml", "")
    write(project, "id_rsa", "")
    found = find(project / "lib" / "model.py")
    assert (found.kind, found.root) == ("folder", project)
    assert set(found.entries) == {"train.py", "lib/model.py", "conf.yaml"}
    assert "dubious ownership" in found.notes[0]
    assert f"safe.directory {project}" in found.notes[0]
    assert found.head.commit is not None


@processes
def test_a_machine_without_git(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = find(project / "lib" / "model.py")
    assert set(found.entries) == {"train.py", "lib/model.py"}
    assert found.notes[0].startswith("git cannot be run: No such file")


def test_git_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, **how: Any) -> None:
        raise subprocess.TimeoutExpired("git", how["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    (tmp_path / ".git").mkdir()
    assert "gave no answer in 60 s" in find(write(tmp_path, "train.py")).notes[0]


@pytest.mark.parametrize("head", ["", "ref: ../../etc/passwd", "ref: refs/heads/x", "\0", "z" * 40])
def test_a_head_that_says_nothing(tmp_path: Path, head: str) -> None:
    write(tmp_path, ".git/HEAD", head)
    assert git.head(tmp_path).commit is None


# --- without git ------------------------------------------------------------------------------


def test_the_python_files_of_the_scripts_folder(tmp_path: Path) -> None:
    yes = ["train.py", "lib/model.py", "conf/base.yaml", "ds.json"]
    no = [".env", "key.pem", "corpus.txt", ".hidden/a.py", "__pycache__/a.py", "my_secret.yaml"]
    no += ["venv/a.py", "venv/pyvenv.cfg", "runs/old/a.py", "runs/old/plan.json"]
    for name in (*yes, *no, "runs/old/attempts/1/x"):
        write(tmp_path, name)
    (tmp_path / "big.json").write_bytes(b" " * (1 << 20) + b"1")
    found = find(tmp_path / "train.py")
    assert (set(found.entries), found.kind, found.head) == (set(yes), "folder", git.Head())
    assert set(find(tmp_path / "train.py", extras=[".env"]).entries) == {*yes, ".env"}


def test_a_folder_with_everything_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MAX_SEEN", 3)
    for name in ("train.py", "a", "b", "c"):
        write(tmp_path, name)
    with pytest.raises(SpecError, match=r"more than 3 files.*--live-code"):
        find(tmp_path / "train.py")


# --- copying ----------------------------------------------------------------------------------


def test_copies_are_read_only_and_can_be_removed(tmp_path: Path) -> None:
    script = write(tmp_path, "src/run.py", "x")
    script.chmod(0o755)
    write(tmp_path, "src/empty")
    entries = {"run.py": Entry(1), "empty": Entry(0)}
    first = copying.copy(tmp_path / "src", entries, tmp_path / "code")
    copied = tmp_path / "code" / "run.py"
    modes = [stat.S_IMODE((tmp_path / "code" / n).stat().st_mode) for n in ("run.py", "empty")]
    assert modes == [0o500, 0o400]
    assert copied.stat().st_mtime_ns == script.stat().st_mtime_ns
    script.write_text("edited in place")
    assert copied.read_text() == "x"
    assert first != copying.copy(tmp_path / "src", entries, tmp_path / "again")
    shutil.rmtree(tmp_path / "code")
    assert not (tmp_path / "code").exists()


def test_a_file_that_goes_or_never_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"gone\.py: cannot be kept: No such file"):
        copying.copy(tmp_path, {"gone.py": Entry(1)}, tmp_path / "one")
    source = write(tmp_path, "log.py", "x")
    write_all = copying._write

    def grow(descriptor: int, block: bytes) -> None:
        write_all(descriptor, block)
        with source.open("a") as file:
            file.write("more")

    monkeypatch.setattr(copying, "_write", grow)
    with pytest.raises(RunError, match=r"log\.py: changes while it is copied"):
        copying.copy(tmp_path, {"log.py": Entry(1)}, tmp_path / "two")


# --- editable installs ------------------------------------------------------------------------


def test_where_editable_installs_import_from(tmp_path: Path) -> None:
    packages = "env/lib/python3.12/site-packages"
    write(tmp_path, f"{packages}/_hatch.pth", "/src/one\n")
    write(tmp_path, f"{packages}/__editable__.two-1.0.pth", "import __editable___two_finder\n")
    finder = "MAPPING: dict[str, str] = {'two': '/src/b/two', 'x': '/odd/y'}\nNAMESPACES = {}\n"
    write(tmp_path, f"{packages}/__editable___two_1_0_finder.py", finder)
    write(tmp_path, f"{packages}/__editable___bad_finder.py", "MAPPING = {open('x')\n")
    write(tmp_path, f"{packages}/distutils.pth", "import os; # /src/no\n")
    assert imports.installed_from(str(tmp_path / "env/bin/python")) == ["/src/one", "/src/b"]
    assert imports.installed_from("no-such-python") == []


# --- the plan ---------------------------------------------------------------------------------


def prepare(job: Path, **how: Any) -> launch.Launch:
    return launch.prepare(job, runs=job.parent / "runs", site=None, overrides=[], **how)


@pytest.fixture
def flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program without git, seen through a link; the caller is in its folder."""
    write(tmp_path, "real/conf/a.yaml")
    write(tmp_path, "real/lib/model.py")
    write(tmp_path, "real/data/corpus.bin")
    (tmp_path / "seen").symlink_to("real")
    monkeypatch.chdir(tmp_path / "seen")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path / "seen"


def test_the_program_comes_from_the_run_and_data_from_where_it_was(flat: Path) -> None:
    words = ["--config", "conf/a.yaml", "--c=conf/a.yaml", f"x={flat}/conf/a.yaml", "conf"]
    words += ["data/corpus.bin", "no/such.yaml", "a=b=c", "", "/", "x" * 5000 + "/."]
    plan = prepare(write_job(flat, args=words, workdir=str(flat))).plan
    code = flat / "runs" / "llama" / "code"
    conf = f"{code}/conf/a.yaml"
    expected = (f"{code}/train.py", "--config", conf, f"--c={conf}", f"x={conf}", *words[4:])
    assert plan.program == expected
    assert plan.workdir == str(flat)
    assert plan.python_path == (str(flat / "runs" / "llama" / "fsdpq"),)


def test_import_paths_into_the_program(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = flat / "runs" / "llama"
    env = {"PYTHONPATH": f"lib:/elsewhere:{flat}:data"}
    plan = prepare(write_job(flat, env=env)).plan
    assert dict(plan.env)["PYTHONPATH"] == f"{run}/code/lib:/elsewhere:{run}/code:data"
    monkeypatch.setenv("PYTHONPATH", f"{flat.resolve()}/lib:/elsewhere")
    plan = prepare(write_job(flat)).plan
    assert plan.python_path == (f"{run}/code/lib", f"{run}/fsdpq")
    write(flat, "env/lib/python3.12/site-packages/mine.pth", f"{flat.resolve()}\n")
    monkeypatch.delenv("PYTHONPATH")
    plan = prepare(write_job(flat, python=str(flat / "env/bin/python"))).plan
    assert plan.python_path == (f"{run}/code", f"{run}/fsdpq")


def test_the_working_directory_can_be_the_copy(flat: Path) -> None:
    code = {"workdir": "snapshot"}
    plan = prepare(write_job(flat, code=code, workdir=str(flat / "lib"))).plan
    assert plan.workdir == str(flat / "runs" / "llama" / "code" / "lib")
    with pytest.raises(SpecError, match=r"job\.yaml: code\.workdir: nothing of .* is kept"):
        prepare(write_job(flat, code=code, workdir=str(flat / "data")))


def test_live_code_changes_nothing(flat: Path) -> None:
    words = {"args": ["conf/a.yaml"], "env": {"PYTHONPATH": "lib"}}
    plans = [
        prepare(write_job(flat, **words), live_code=True).plan,
        prepare(write_job(flat, **words, code="live"), live_code=True).plan,
        prepare(write_job(flat, **words, code="live")).plan,
        prepare(write_job(flat, **words, code={"live": True})).plan,
    ]
    for plan in plans:
        assert plan.program == (f"{flat}/train.py", "conf/a.yaml")
        assert (dict(plan.env)["PYTHONPATH"], plan.python_path) == ("lib", ())


def test_a_run_directory_that_no_import_path_can_hold(flat: Path) -> None:
    job = write_job(flat)
    with pytest.raises(SpecError, match=r"contains ':'.*--live-code"):
        launch.prepare(job, runs=flat / "a:b", site=None, overrides=[])
    launch.prepare(job, runs=flat / "a:b", site=None, overrides=[], live_code=True)


# --- whole runs -------------------------------------------------------------------------------

# Runs the script that torchrun would have started, and the recorder.
PYTHON = f"""#!/bin/bash
[[ $2 != orchestrator.* ]] || exit 0
if [ "$1" = -m ]; then until [[ $1 == *.py ]]; do shift; done; fi
exec {sys.executable} "$@"
"""
SCRIPT = """
import sys, helper
import orchestrator
print("VERSION", {version}, helper.VALUE, orchestrator.__file__)
sys.exit(1)
"""


def submit(job: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> RunLayout:
    monkeypatch.setattr(starting, "start", lambda *_, **__: "7")
    prepared = prepare(job, **how)
    launch.submit(prepared)
    return prepared.layout


def attempt(run: RunLayout) -> str:
    """Start the run's script once more and return what this attempt printed."""
    run.output.write_text("")
    subprocess.run(["bash", run.script], check=False, timeout=60)
    printed = run.output.read_text()
    assert "VERSION" in printed, printed
    return next(line for line in printed.splitlines() if line.startswith("VERSION"))


def wait_for(path: Path) -> dict[str, Any]:
    """Return the JSON object that something in the background writes."""
    until = time.monotonic() + 30
    while (found := store.read_json(path)) is None:
        assert time.monotonic() < until, f"{path} does not appear"
        time.sleep(0.02)
    return found


@processes
@pytest.mark.parametrize("live", [False, True])
def test_an_edit_after_the_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    # The copy wins over the caller's own path, too.
    monkeypatch.setenv("PYTHONPATH", str(Path(orchestrator.__file__).parents[1]))
    project = make_repository(tmp_path / "pro ject's", train=SCRIPT.format(version=1))
    write(project, "helper.py", "VALUE = 10")
    commit(project)
    write(project, "helper.py", "VALUE = 11")
    python = write(tmp_path, "python", PYTHON)
    python.chmod(0o755)
    job = write_job(tmp_path, script=str(project / "train.py"), python=str(python))
    run = submit(job, monkeypatch, live_code=live)
    package = run.fsdpq if not live else Path(orchestrator.__file__).parents[1]
    assert attempt(run) == f"VERSION 1 11 {package}/orchestrator/__init__.py"
    wait_for(run.attempt(1).environment)
    write(project, "train.py", SCRIPT.format(version=2))
    write(project, "helper.py", "VALUE = 222")
    values = "2 222" if live else "1 11"
    assert attempt(run) == f"VERSION {values} {package}/orchestrator/__init__.py"
    record = store.read_json(run.code_record) or {}
    assert record["mode"] == ("live" if live else "snapshot")
    assert record["commit"] == run_git(project, "rev-parse", "HEAD")
    assert (record["branch"], record["dirty"], record["root"]) == ("main", True, str(project))
    assert "+VALUE = 11" in run.code_diff.read_text()
    assert stat.S_IMODE(run.code_diff.stat().st_mode) == 0o600
    assert record["fsdpq"]["version"] == orchestrator.__version__
    assert run.code.exists() is not live
    noted = [wait_for(run.attempt(number).environment) for number in (1, 2)]
    assert [bool(item["code"]) for item in noted] == [live, live]
    changed = [change.what for change in facts.environment_changes(run)]
    assert changed == ([("live code edited",)] if live else [])
    if not live:
        assert (record["files"], record["excluded"]) == (2, {"count": 0, "first": []})


def test_a_refused_job_leaves_no_copy(flat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submit(write_job(flat), monkeypatch)
    assert {path.name for path in run.code.rglob("*.py")} == {"train.py", "model.py"}
    assert (run.fsdpq / "orchestrator" / "runtime" / "run.py").is_file()
    record = json.loads(run.code_record.read_text())
    assert (record["kind"], record["commit"], record["dirty"]) == ("folder", None, None)
    store.discard(run)
    assert not run.root.exists()


def test_a_copy_that_fails_leaves_no_run(flat: Path) -> None:
    prepared = prepare(write_job(flat))
    (flat / "lib" / "model.py").unlink()
    with pytest.raises(RunError, match=r"model\.py: cannot be kept"):
        launch.submit(prepared)
    assert list((flat / "runs").iterdir()) == []


def test_the_trainer_is_kept_too(flat: Path) -> None:
    train = {
        "model": {"config": {"model_type": "llama"}},
        "data": {"text_files": ["x"], "seq_len": 8},
        "steps": 30,
        "global_batch": 8,
    }
    prepared = prepare(write_job(flat, script=None, train=train))
    assert prepared.plan.python_path == (str(prepared.layout.fsdpq),)
    assert prepared.code.tree is None
    with pytest.raises(SpecError, match="belong to `script:`"):
        prepare(write_job(flat, script=None, train=train, code={"extras": ["a"]}))


def test_the_package_that_is_kept_is_whole() -> None:
    found = snapshot.own.find()
    source = Path(orchestrator.__file__).parent
    files = {p for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert set(found.entries) == {str(path.relative_to(source.parent)) for path in files}
