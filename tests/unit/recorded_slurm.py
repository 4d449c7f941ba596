"""Small programs in the place of Slurm's, that answer as a real one did (tests/data)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli import main
from orchestrator.detect import looking

from .clusters import DATA

SITE = DATA / "slurm-22.05" / "site"
REPOSITORY = Path(__file__).parents[2]
# By what stands in the command: the first that does answers.
ANSWERS = (
    ("show config", "config"),
    ("show partition", "partition"),
    ("show node", "node"),
    ("user= ", "accounts"),
    ("show associations", "assoc"),
    ("show user", "user"),
    ("show qos", "qos"),
)
Fake = Callable[[str, str], None]


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A recorded Slurm on PATH, as seen from an empty folder; single programs can be changed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FSDPQ_RUNS", raising=False)
    monkeypatch.setattr(looking, "_groups", lambda: ("alice",))
    folder = tmp_path / "first-run"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def write(name: str, body: str) -> None:
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)

    cases = "".join(f'*"{words}"*) cat {SITE}/{name}.txt ;;\n' for words, name in ANSWERS)
    for name in ("scontrol", "sacctmgr"):
        write(name, f'case "$* " in {cases} *) exit 1 ;; esac')
    for name in ("sinfo", "squeue", "scancel"):
        write(name, "exit 1")
    write("srun", '[ "$1" = --help ] && exit 0; exit 1')
    return write


def fsdpq(*args: str | Path, input: str | None = None) -> Result:
    result = CliRunner().invoke(main, [str(arg) for arg in args], prog_name="fsdpq", input=input)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def own() -> Path:
    return Path(os.environ["XDG_CONFIG_HOME"]) / "fsdpq" / "sites"


def wait_for(path: Path, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.05)
