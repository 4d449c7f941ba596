"""Packing: what a document gives in a sample is what it gives alone, for each family of models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402
import torch.distributed as dist  # noqa: E402

from orchestrator.errors import SpecError  # noqa: E402
from orchestrator.runtime.environment import read_environment  # noqa: E402
from orchestrator.spec.train import TrainSpec  # noqa: E402
from orchestrator.trainer import training as parts  # noqa: E402
from orchestrator.trainer.attending import attend, check_documents  # noqa: E402
from orchestrator.trainer.corpus import Corpus, open_corpus  # noqa: E402
from orchestrator.trainer.evaluation import Evaluator  # noqa: E402
from orchestrator.trainer.loader import Batch, batch_of  # noqa: E402
from orchestrator.trainer.model import build_model  # noqa: E402
from orchestrator.trainer.packing import IGNORED, take  # noqa: E402
from orchestrator.trainer.training import Training  # noqa: E402
from orchestrator.trainer.world import World, connect  # noqa: E402

pytestmark = pytest.mark.e2e

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "initializer_range": 0.5,  # so that attention matters
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**SIZES, "model_type": "llama"},
    "qwen3": {**SIZES, "model_type": "qwen3", "head_dim": 8},
    "mistral": {**SIZES, "model_type": "mistral", "sliding_window": 4},
    "gemma3": {**SIZES, "model_type": "gemma3_text", "head_dim": 8, "sliding_window": 4},
    "mixtral": {**SIZES, "model_type": "mixtral", "num_local_experts": 4},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 256},
}
LENGTHS = (5, 1, 17, 2, 9, 30)
L = 16


def make_spec(model: dict[str, Any], **changes: Any) -> TrainSpec:
    data = {"text_files": ["x"], "seq_len": L, "packing": "documents", **changes.pop("data", {})}
    return TrainSpec.model_validate(
        {
            "model": {"config": model, "attention": changes.pop("attention", "sdpa")},
            "data": data,
            "steps": 10,
            "global_batch": 4,
            "micro_batch": 2,
            "precision": "fp32",
            **changes,
        }
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("run")
    env = read_environment({"FSDPQ_RUN_DIR": str(folder), "FSDPQ_ATTEMPT": "1"})
    yield connect(env, make_spec(MODELS["llama"]))
    dist.destroy_process_group()


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    rng = np.random.default_rng(3)
    (tmp_path / "text").mkdir()
    for number, length in enumerate(LENGTHS):
        content = rng.integers(0, 256, size=length, dtype=np.uint8).tobytes()
        (tmp_path / f"text/{number}").write_bytes(content)
    return open_corpus((str(tmp_path / "text"),), seq_len=L)


def documents_in(batch: Batch) -> Iterator[tuple[Any, Any]]:
    """Yield inputs and targets of each document, as a batch of its own."""
    assert batch.positions is not None
    for row in range(len(batch.inputs)):
        begins = (batch.positions[row] == 0).nonzero().flatten().tolist()
        for begin, end in zip(begins, [*begins[1:], L], strict=True):
            yield batch.inputs[row : row + 1, begin:end], batch.targets[row : row + 1, begin:end]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_packed_is_as_alone(name: str, attention: str, world: World, corpus: Corpus) -> None:
    """Logits within 2e-4 (fp32, of about 1 to 10), the sum of the losses within 1e-5 of itself."""
    spec = make_spec(MODELS[name], attention=attention)
    model = build_model(spec, world, fresh=True).eval()
    batch = batch_of(take(corpus, np.arange(corpus.num_samples), documents=True), pin=False)
    assert batch.positions is not None
    assert int((batch.targets == IGNORED).sum()) >= 4
    with torch.no_grad():
        packed = model(input_ids=batch.inputs, position_ids=batch.positions).logits
        alone = [model(input_ids=inputs).logits[0] for inputs, _ in documents_in(batch)]
        torch.testing.assert_close(packed.flatten(0, 1), torch.cat(alone), rtol=0, atol=2e-4)
        leaking = model(input_ids=batch.inputs).logits
        assert (leaking - packed).abs().max() > 1e-2  # the tolerance would see it
        loss = float(model(**attend(batch, spec), divisor=1))
        wanted = sum(
            float(torch.nn.functional.cross_entropy(a, targets[0], reduction="sum"))
            for a, (_, targets) in zip(alone, documents_in(batch), strict=True)
            if (targets != IGNORED).any()
        )
    assert loss == pytest.approx(wanted, rel=1e-5)
    check_documents(model, spec, world)


def test_models_without_such_a_mask_are_refused(world: World) -> None:
    bloom = {"model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 256}
    spec = make_spec({**bloom, "initializer_range": 0.5}, attention="eager")
    model = build_model(spec, world, fresh=True)
    with pytest.raises(SpecError, match="BloomForCausalLM with attention eager lets tokens see"):
        check_documents(model, spec, world)


def test_flash_attention_gets_one_row(corpus: Corpus) -> None:
    spec = make_spec(MODELS["llama"], attention="flash_attention_2")
    batch = batch_of(take(corpus, np.arange(2), documents=True), pin=False)
    found = attend(batch, spec)
    assert {part.shape for part in found.values()} == {(1, 2 * L)}
    assert (found["position_ids"][0] == 0).nonzero().flatten().tolist()[0] == 0
    assert found["position_ids"][0, L] == 0


def test_the_loss_is_a_mean_over_what_is_predicted(world: World, corpus: Corpus) -> None:
    spec = make_spec(MODELS["llama"], data={"read_ahead": 0})
    training = parts.build(spec, world, corpus, fresh=True)
    samples = training.sampler.ids(np.arange(4))
    batch = batch_of(take(corpus, samples, documents=True), pin=False)
    with torch.no_grad():
        wanted = float(training.model(**attend(batch, spec), divisor=1))
    wanted /= int((batch.targets != IGNORED).sum())
    assert parts.train_step(training).loss == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("data", [{"read_ahead": 0}, {"read_ahead": 5, "readers": 3}])
def test_reading_ahead_changes_no_bit(world: World, corpus: Corpus, data: Any) -> None:
    def losses(**more: Any) -> list[float]:
        spec = make_spec(MODELS["llama"], data={**more, "packing": "stream"})
        training = parts.build(spec, world, corpus, fresh=True)
        training.state.position = 8  # as if loaded
        return [parts.train_step(training).loss for _ in range(4)]

    assert losses(**data) == losses()


def test_going_back_to_an_earlier_position(world: World, corpus: Corpus) -> None:
    training = parts.build(make_spec(MODELS["llama"]), world, corpus, fresh=True)
    first = training.loader.portion(0).batches[0].result().inputs
    training.loader.portion(4)
    assert torch.equal(training.loader.portion(0).batches[0].result().inputs, first)


# -- evaluation ------------------------------------------------------------------------------------


def measured(
    world: World, corpus: Corpus, *, every: int, **changes: Any
) -> tuple[Training, list[Any], list[float]]:
    spec = make_spec(
        MODELS["llama"], eval={"text_files": ["x"], "every": every, "batches": 1}, **changes
    )
    training = parts.build(spec, world, corpus, fresh=True)
    evaluator = Evaluator.of(training, corpus)
    assert evaluator is not None
    seen, losses = [], []
    for _ in range(3):
        losses.append(parts.train_step(training).loss)
        if evaluator.due():
            seen.append(evaluator.measure(stop=lambda: False))
    return training, seen, losses


def test_measuring_disturbs_nothing(world: World, corpus: Corpus) -> None:
    dropout = {**MODELS["llama"], "attention_dropout": 0.3}
    spec = make_spec(dropout)
    plain = parts.build(spec, world, corpus, fresh=True)
    wanted = [parts.train_step(plain).loss for _ in range(3)]
    with_eval = spec.model_copy(
        update={"eval": make_spec(dropout, eval={"text_files": ["x"], "every": 1}).eval}
    )
    training = parts.build(with_eval, world, corpus, fresh=True)
    evaluator = Evaluator.of(training, corpus)
    assert evaluator is not None
    found = []
    for _ in range(3):
        found.append(parts.train_step(training).loss)
        assert evaluator.measure(stop=lambda: False)
    assert found == wanted
    assert training.model.training


def test_what_is_measured(world: World, corpus: Corpus) -> None:
    """One batch of 4 of the 3 samples: a padded micro-batch counts for what is in it."""
    training, seen, _ = measured(world, corpus, every=3)
    (found,) = seen
    assert corpus.num_samples == 3
    batch = batch_of(take(corpus, np.arange(3), documents=True), pin=False)
    count = int((batch.targets != IGNORED).sum())
    with torch.no_grad():
        loss = float(training.model(**attend(batch, training.spec), divisor=count))
    assert (found["step"], found["tokens"]) == (3, count)
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["perplexity"] == pytest.approx(float(np.exp(loss)), rel=1e-5)


def test_a_notice_cuts_it_short(world: World, corpus: Corpus) -> None:
    training, _, _ = measured(world, corpus, every=3)
    evaluator = Evaluator.of(training, corpus)
    assert evaluator is not None
    training.state.step = 4
    assert not evaluator.due()
    assert evaluator.measure(stop=lambda: True) is None
    assert training.state.state_dict()["eval"] == {"owed": True}
    assert evaluator.due()
    assert evaluator.measure(stop=lambda: False) is not None
    assert not evaluator.due()


def test_too_small_a_vocabulary(world: World, corpus: Corpus) -> None:
    spec = make_spec({**MODELS["llama"], "vocab_size": 255})
    with pytest.raises(SpecError, match="vocab_size must be 256 or more"):
        parts.build(spec, world, corpus, fresh=True)
