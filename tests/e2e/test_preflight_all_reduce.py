"""The small all-reduce of the pre-flight, with real ranks on the CPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from orchestrator.preflight.all_reduce import check_all_reduce
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Findings

pytest.importorskip("torch")

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


def reduce(folder: Path, *, timeout_s: int) -> Findings:
    expected = Expected(checks=("all_reduce",), workers=2, all_reduce_timeout_s=timeout_s)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return check_all_reduce(expected, temporary=str(folder), environment=environment)


def test_ranks_that_are_well_find_nothing(tmp_path: Path) -> None:
    assert reduce(tmp_path, timeout_s=120) == Findings()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fate", "word"),
    [
        ("exec sleep 600", "still waited to start"),
        ("echo 'CUDA error: device lost' >&2; exit 3", "failed: exit code 3: CUDA error: device"),
    ],
)
def test_the_rank_that_does_not_come_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: str, word: str
) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text(
        f'#!/bin/bash\nif [ "$3" = 1 ]; then {fate}; fi\nexec {sys.executable} "$@"\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    [problem] = reduce(tmp_path, timeout_s=30).problems
    assert problem.check == "all_reduce"
    assert "GPU 1" in problem.what
    assert word in problem.what
