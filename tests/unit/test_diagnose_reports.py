"""What `fsdpq diagnose` makes of torchrun's report, of what is no log, and of your own sites."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from .test_diagnose import IB_SITE, SOCKET, invoke

DATA = Path(__file__).parents[1] / "data" / "torchrun-2.13"


@pytest.mark.parametrize(
    ("how", "kind", "rank", "words"),
    [
        ("raise", "exception", 1, "ValueError: bad batch 17"),
        ("kill", "signal", 1, "SIGKILL"),
        ("exit", "exit", 1, "exit code 7"),
        ("import", "module", 1, "nowhere_module"),
    ],
)
def test_the_rank_behind_torchruns_own_exception(
    how: str, kind: str, rank: int, words: str
) -> None:
    code, said = invoke("diagnose", DATA / how / "batch.log")
    first, cause = said.splitlines()[:2]
    assert code == 0
    assert words in first
    assert cause.startswith(f"cause: {kind}, rank {rank}")
    assert "ChildFailedError" not in said


def test_torchruns_own_exception_where_there_is_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in <module>\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    )
    assert "ChildFailedError" in invoke("diagnose", log)[1]


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"\x1f\x8b\x08\x00", "packed (gzip)"),
        (b"\x28\xb5\x2f\xfd", "packed (zstd)"),
        (b"\x7fELF", "a program"),
    ],
)
def test_what_is_no_text(tmp_path: Path, start: bytes, words: str) -> None:
    log = tmp_path / "x.log.gz"
    log.write_bytes(start + bytes(100))
    code, said = invoke("diagnose", log)
    assert code == 1
    assert f"x.log.gz: is {words} and no log" in said


def test_a_site_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    own = tmp_path / "config" / "fsdpq" / "sites" / "ib.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(yaml.safe_dump(IB_SITE))
    log = tmp_path / "n1.7.log"
    log.write_text("".join(line.format("n1") + "\n" for line in SOCKET))
    assert "ib has infiniband" in invoke("diagnose", log, "--site", "ib")[1]
