"""What a run keeps of a program without git, how it is copied, and what patterns mean."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

import orchestrator
from orchestrator import snapshot
from orchestrator.errors import RunError, SpecError
from orchestrator.snapshot import copying, git, imports, walk
from orchestrator.snapshot.patterns import matches
from orchestrator.snapshot.tree import Entry

from .repository import write
from .snapshots import find


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


def test_the_package_that_is_kept_is_whole() -> None:
    found = snapshot.own.find()
    source = Path(orchestrator.__file__).parent
    files = {p for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert set(found.entries) == {str(path.relative_to(source.parent)) for path in files}
