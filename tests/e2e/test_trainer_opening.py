"""Sources that a run makes ready by itself: once, watched, and with one message if they are bad."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402
import torch.distributed as dist  # noqa: E402

from orchestrator.errors import SpecError  # noqa: E402
from orchestrator.runtime import Notice, Run  # noqa: E402
from orchestrator.runtime.environment import Environment, read_environment  # noqa: E402
from orchestrator.spec.train import TrainSpec  # noqa: E402
from orchestrator.trainer import sources  # noqa: E402
from orchestrator.trainer.corpus import Corpus, Joined  # noqa: E402
from orchestrator.trainer.metrics import Console  # noqa: E402
from orchestrator.trainer.sources import NoticeError, open_data  # noqa: E402
from orchestrator.trainer.world import World, connect  # noqa: E402

pytestmark = pytest.mark.e2e


@dataclass
class Alone:
    """What opening data wants of a run."""

    env: Environment
    notice: Notice | None = None
    busy_with: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def busy(self, what: str, *, limit_s: float) -> Iterator[None]:
        self.busy_with.append(what)
        yield

    def should_stop(self, **_: float) -> Notice | None:
        return self.notice


def environment(folder: Path) -> Environment:
    return read_environment({"FSDPQ_RUN_DIR": str(folder), "FSDPQ_ATTEMPT": "1"})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield connect(environment(tmp_path_factory.mktemp("run")), make_spec(text_files=["x"]))
    dist.destroy_process_group()


def make_spec(**data: Any) -> TrainSpec:
    more = {key: data.pop(key) for key in ("eval", "model") if key in data}
    return TrainSpec.model_validate(
        {
            "model": {"config": {"model_type": "llama"}},
            "data": {"seq_len": 8, **data},
            "steps": 1,
            "global_batch": 1,
            **more,
        }
    )


def opened(
    world: World, folder: Path, *, notice: Notice | None = None, **data: Any
) -> tuple[Corpus, Corpus | None]:
    (folder / "run").mkdir(exist_ok=True)
    run = Alone(environment(folder / "run"), notice)
    return open_data(cast(Run, run), make_spec(**data), world, Console(quiet=False))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({"text": f"number {n}"}) + "\n" for n in range(50)))
    return path


def test_made_once_and_then_watched(world: World, tmp_path: Path, lines: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 40)
    data: dict[str, Any] = {
        "sources": [
            {"jsonl": [str(lines)], "weight": 2},
            {"text_files": [str(tmp_path / "a.txt")], "weight": 1},
        ],
        "eval": {"jsonl": [str(lines)]},
    }
    corpus, held_out = opened(world, tmp_path, **data)
    assert isinstance(corpus, Joined)
    assert corpus.weights == (2.0, 1.0)
    assert held_out is not None
    assert bytes(held_out.windows(np.array([0]))[0].astype(np.uint8)) == b"number 0n"
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "run/data").rglob("*.bin")}
    assert len(made) == 2
    again, _ = opened(world, tmp_path, **data)
    assert again.fingerprint == corpus.fingerprint
    assert made == {path: path.stat().st_mtime_ns for path in made}
    with lines.open("a") as file:
        file.write('{"text": "more"}\n')
    with pytest.raises(
        SpecError,
        match=r"data\.sources\.0\.jsonl: .*lines\.jsonl has .* since the run began; samples",
    ):
        opened(world, tmp_path, **data)


def test_bad_sources_are_one_message(world: World, tmp_path: Path, lines: Path) -> None:
    with lines.open("a") as file:
        file.write('{"text": "torn')
    with pytest.raises(SpecError, match=rf"^data\.jsonl: {lines}, line 51: the last line is torn"):
        opened(world, tmp_path, jsonl=[str(lines)])
    with pytest.raises(SpecError, match=r"^data\.jsonl: nothing matches /nowhere"):
        opened(world, tmp_path, jsonl=["/nowhere"])
    with pytest.raises(SpecError, match=r"^data\.tokenizer: /nowhere holds none"):
        opened(world, tmp_path, text_files=[str(lines)], tokenizer="/nowhere")


def test_a_notice_ends_the_making(
    world: World, tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources._Work, "said", lambda self: (False, ""))
    stopped: list[bool] = []
    monkeypatch.setattr(sources._Work, "stop", lambda self: stopped.append(True))
    with pytest.raises(NoticeError, match="USR2 while data were being made ready"):
        opened(world, tmp_path, jsonl=[str(lines)], notice=Notice("USR2", 1.0, "file"))
    assert stopped == [True]


def test_tokens_of_another_tokenizer_are_told(
    world: World, tmp_path: Path, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    opened(world, tmp_path, text_files=[str(lines)], model={"path": str(tmp_path)})
    assert "note: tokens are bytes, and" in capsys.readouterr().out
