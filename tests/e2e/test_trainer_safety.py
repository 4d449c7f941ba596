"""Loss or gradient that is no number: what a step changes, and what a checkpoint keeps of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import load  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import save  # noqa: E402

from orchestrator.runtime import Run  # noqa: E402
from orchestrator.runtime.environment import Environment, read_environment  # noqa: E402
from orchestrator.runtime.notices import NoticeBoard  # noqa: E402
from orchestrator.spec.train import CheckpointSpec, TrainSpec  # noqa: E402
from orchestrator.trainer import caches  # noqa: E402
from orchestrator.trainer import training as parts  # noqa: E402
from orchestrator.trainer.corpus import Corpus, open_corpus  # noqa: E402
from orchestrator.trainer.lenient import LenientPlanner  # noqa: E402
from orchestrator.trainer.metrics import Console  # noqa: E402
from orchestrator.trainer.saver import Saver  # noqa: E402
from orchestrator.trainer.world import World, connect  # noqa: E402

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="compares with the CPU: set CUDA_VISIBLE_DEVICES="
    ),
]


def spec_of(**changes: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "model": {
                "config": {
                    "model_type": "llama",
                    "hidden_size": 32,
                    "intermediate_size": 48,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                    "vocab_size": 256,
                }
            },
            "data": {"text_files": ["x"], "seq_len": 16},
            "steps": 10,
            "global_batch": 4,
            "micro_batch": 2,
            "precision": "fp32",
            **changes,
        }
    )


@pytest.fixture
def env(tmp_path: Path) -> Environment:
    return read_environment({"FSDPQ_RUN_DIR": str(tmp_path), "FSDPQ_ATTEMPT": "1"})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = str(tmp_path_factory.mktemp("run"))
    yield connect(read_environment({"FSDPQ_RUN_DIR": folder, "FSDPQ_ATTEMPT": "1"}), spec_of())
    dist.destroy_process_group()


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "text").write_bytes(bytes(range(256)) * 8)
    return open_corpus((str(tmp_path / "text"),), seq_len=16)


def poisoned_step(training: parts.Training, what: float = float("nan")) -> parts.Result:
    """Take a step whose loss is multiplied by ``what``."""
    hook = training.model.register_forward_hook(lambda model, args, loss: loss * what)
    try:
        return parts.train_step(training)
    finally:
        hook.remove()


def everything(training: parts.Training) -> list[Any]:
    """Return copies of weights, moments and step counts."""
    state = training.state.state_dict()
    flat = [*state["model"].values()]
    for moments in state["optim"]["state"].values():
        flat += moments.values()
    return [full(value) for value in flat]


def full(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value.clone()


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_a_skipped_step_changes_neither_weights_nor_moments(
    world: World, corpus: Corpus, what: float
) -> None:
    training = parts.build(spec_of(nonfinite="skip"), world, corpus, fresh=True)
    parts.train_step(training)
    before = everything(training)
    result = poisoned_step(training, what)
    assert result.skipped
    assert same(everything(training), before)
    assert (training.state.step, training.state.position) == (2, 8)
    assert (training.state.skipped, training.state.skipped_in_a_row) == (1, 1)
    assert not parts.train_step(training).skipped
    assert not same(everything(training), before)
    assert (training.state.skipped, training.state.skipped_in_a_row) == (1, 0)


def test_a_gradient_alone_may_be_no_number(
    world: World, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = parts.build(spec_of(nonfinite="skip"), world, corpus, fresh=True)
    before = everything(training)[: len(list(training.model.parameters()))]
    monkeypatch.setattr(parts, "_clip", lambda training: torch.tensor(float("inf")))
    result = parts.train_step(training)
    assert torch.isfinite(torch.tensor(result.loss))
    assert result.skipped
    assert same([full(p) for p in training.model.state_dict().values()], before)


def test_too_many_in_a_row_end_the_attempt(world: World, corpus: Corpus) -> None:
    training = parts.build(spec_of(nonfinite="skip", nonfinite_limit=2), world, corpus, fresh=True)
    poisoned_step(training)
    parts.train_step(training)
    poisoned_step(training)
    with pytest.raises(FloatingPointError, match="2 steps in a row"):
        poisoned_step(training)
    assert training.state.step == 3


def test_stop_changes_nothing(world: World, corpus: Corpus) -> None:
    training = parts.build(spec_of(), world, corpus, fresh=True)
    parts.train_step(training)
    before = everything(training)
    with pytest.raises(FloatingPointError, match="step 2: the loss is nan"):
        poisoned_step(training)
    assert same(everything(training), before)
    assert (training.state.step, training.state.position, training.state.skipped) == (1, 4, 0)


# -- what a checkpoint keeps -----------------------------------------------------------------------


def test_the_count_outlives_an_attempt(world: World, corpus: Corpus, tmp_path: Path) -> None:
    spec = spec_of(nonfinite="skip")
    training = parts.build(spec, world, corpus, fresh=True)
    poisoned_step(training)
    save({"app": training.state}, checkpoint_id=tmp_path / "c")
    again = parts.build(spec, world, corpus, fresh=False).state
    load({"app": again}, checkpoint_id=tmp_path / "c", planner=LenientPlanner())
    assert (again.step, again.skipped, again.skipped_in_a_row) == (1, 1, 1)


class Without:
    """A state as an older version saved it: one key is not there."""

    def __init__(self, state: Any, key: str) -> None:
        self.state, self.key = state, key

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in self.state.state_dict().items() if key != self.key}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def test_a_checkpoint_of_an_older_version_loads(
    world: World, corpus: Corpus, tmp_path: Path
) -> None:
    training = parts.build(spec_of(), world, corpus, fresh=True)
    parts.train_step(training)
    save({"app": Without(training.state, "skipped")}, checkpoint_id=tmp_path / "c")
    again = parts.build(spec_of(), world, corpus, fresh=False)
    load({"app": again.state}, checkpoint_id=tmp_path / "c", planner=LenientPlanner())
    assert (again.state.step, again.state.skipped) == (1, 0)
    assert same(everything(again), everything(training))


def test_nothing_else_may_be_missing(world: World, corpus: Corpus, tmp_path: Path) -> None:
    training = parts.build(spec_of(), world, corpus, fresh=True)
    save({"app": Without(training.state, "scheduler")}, checkpoint_id=tmp_path / "c")
    with pytest.raises(CheckpointException, match="scheduler"):
        load({"app": training.state}, checkpoint_id=tmp_path / "c", planner=LenientPlanner())


# -- saved in the background -----------------------------------------------------------------------

TIED: dict[str, Any] = {
    "model": {
        "config": {
            "model_type": "llama",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 256,
            "tie_word_embeddings": True,
        }
    },
    "loss_chunks": 2,
}


@pytest.mark.parametrize(
    "options",
    [{}, {"activation_checkpointing": "full"}, {"cpu_offload": True}, TIED],
    ids=["plain", "full", "offload", "tied, in parts"],
)
def test_steps_that_are_left_out_behind_a_save(
    world: World, corpus: Corpus, env: Environment, options: dict[str, Any]
) -> None:
    spec = spec_of(nonfinite="skip", **options)
    training = parts.build(spec, world, corpus, fresh=True)
    run, saver = saver_of(env, training)
    assert run.resume() is None
    parts.train_step(training)
    poisoned_step(training)
    saver.prepare()
    assert saver.behind is not None
    then = everything(training)
    saver.save_soon()
    poisoned_step(training)
    parts.train_step(training)
    now = everything(training)
    saver.close()
    again = parts.build(spec, world, corpus, fresh=False)
    run, saver = saver_of(env, again)
    checkpoint = run.resume()
    assert checkpoint is not None
    saver.load(checkpoint)
    assert (again.state.step, again.state.skipped, again.state.skipped_in_a_row) == (2, 1, 1)
    assert same(everything(again), then)
    poisoned_step(again)
    parts.train_step(again)
    assert same(everything(again), now)


def saver_of(env: Environment, training: parts.Training) -> tuple[Run, Saver]:
    """Return the run of an attempt, and what saves in the background for it."""
    run = Run(env, NoticeBoard(signals=(), file=None, under_torchrun=False))
    spec = CheckpointSpec(mode="async")
    return run, Saver(run, training.state, spec, Console(quiet=True), timeout_s=60)


# -- compiled code ---------------------------------------------------------------------------------


def test_no_cache_and_a_broken_one_stop_nobody(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not caches.load_caches(env)
    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_miss", 1)
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"nonsense", None))
    assert caches.save_caches(env)
    (file,) = env.run.compiled.iterdir()
    assert file.read_bytes() == b"nonsense"
    assert file.stat().st_mode & 0o777 == 0o600
    assert not caches.load_caches(env)


def test_what_is_kept_is_bounded(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"nonsense", None))
    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_miss", 0)
    assert not caches.save_caches(env)  # all came from a cache
    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_miss", 1)
    monkeypatch.setattr(caches, "_LIMIT", 7)
    assert not caches.save_caches(env)
    monkeypatch.setattr(caches, "_LIMIT", 8)
    env.run.compiled.mkdir()
    for name in ("0123456789abcdef-0.bin", "0123456789abcdef-1.bin"):
        (env.run.compiled / name).write_bytes(b"of another version")
    assert caches.save_caches(env)
    assert (env.run.compiled / "0123456789abcdef-1.bin").exists()
    assert len(list(env.run.compiled.iterdir())) == 2
