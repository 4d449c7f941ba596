"""What a run keeps of a program in a git repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.snapshot import git

from .repository import commit, make_repository, write
from .repository import git as run_git
from .snapshots import find, kept

processes = pytest.mark.processes


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project", train="1", lib__model="2")


def traitor(folder: Path) -> tuple[Path, Path]:
    """Return a program, and the file that it makes when something runs it."""
    canary = folder / "canary"
    program = write(folder, "program", f"#!/bin/sh\ntouch {canary}\ncat\n")
    program.chmod(0o755)
    return program, canary


# --- which files ------------------------------------------------------------------------------


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
    program, canary = traitor(tmp_path)
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


# --- links, submodules, work trees ------------------------------------------------------------


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
    program, canary = traitor(tmp_path)
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


# --- git that is of no help -------------------------------------------------------------------


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
