import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.cli import main


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "checkpoints" / "step-3"
    path.mkdir(parents=True)
    (tmp_path / "run" / "train.json").write_text("{}")
    return path


def test_a_login_node_without_torch(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name == "torch" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    result = CliRunner().invoke(main, ["export", str(checkpoint), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "export needs torch" in result.output
    assert sys.executable in result.output
    assert "fsdpq[train]" in result.output


def test_the_step_is_said_twice(checkpoint: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["export", str(checkpoint), "--step", "4", "-o", str(tmp_path / "out")]
    )
    assert result.exit_code == 2
    assert "step-3 is step 3" in result.output


def test_a_script_of_your_own(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "train.json").unlink()
    result = CliRunner().invoke(main, ["export", str(checkpoint), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "only runs of fsdpq's own trainer" in result.output


@pytest.mark.parametrize("size", ["nan", "inf", "0"])
def test_a_file_size_that_is_none(checkpoint: Path, tmp_path: Path, size: str) -> None:
    result = CliRunner().invoke(
        main, ["export", str(checkpoint), "--shard-gb", size, "-o", str(tmp_path / "out")]
    )
    assert result.exit_code == 2
    assert "'--shard-gb'" in result.output


def test_no_such_run(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["export", "nonesuch", "--runs", str(tmp_path), "-o", str(tmp_path / "out")]
    )
    assert result.exit_code == 1
    assert "nonesuch" in result.output
