"""The trainer's parts in this process, on one rank: the model, its weights, its state."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np  # noqa: E402
import torch.distributed as dist  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from orchestrator.errors import SpecError  # noqa: E402
from orchestrator.runtime.environment import read_environment  # noqa: E402
from orchestrator.spec.train import TrainSpec  # noqa: E402
from orchestrator.trainer import training as parts  # noqa: E402
from orchestrator.trainer.anatomy import decoder_blocks  # noqa: E402
from orchestrator.trainer.corpus import Corpus, open_corpus  # noqa: E402
from orchestrator.trainer.model import build_model, build_on_meta  # noqa: E402
from orchestrator.trainer.randomness import (  # noqa: E402
    gather_states,
    restore_states,
    seed_all,
)
from orchestrator.trainer.world import World, connect  # noqa: E402

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="compares with the CPU: set CUDA_VISIBLE_DEVICES="
    ),
]

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "is_decoder": True,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
}
MODELS: dict[str, dict[str, Any]] = {
    "bert-decoder": BERT,
    "llama": LLAMA,
    "llama-tied": {**LLAMA, "tie_word_embeddings": True},
    "llama-scaled-rope": {
        **LLAMA,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "rope_theta": 500000.0,
        "max_position_embeddings": 512,
    },
    "qwen2": {**LLAMA, "model_type": "qwen2"},
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 8},
    "mistral": {**LLAMA, "model_type": "mistral"},
    "gemma2": {**LLAMA, "model_type": "gemma2", "head_dim": 8},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": 256,
    },
    "mixtral": {**LLAMA, "model_type": "mixtral", "num_local_experts": 4},
}


def make_spec(config: dict[str, Any], **changes: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "model": {"config": config, "attention": "eager"},
            "data": {"text_files": ["x"], "seq_len": 16},
            "steps": 10,
            "global_batch": 4,
            "micro_batch": 2,
            "precision": "fp32",
            **changes,
        }
    )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    env = read_environment(
        {"FSDPQ_RUN_DIR": str(tmp_path_factory.mktemp("run")), "FSDPQ_ATTEMPT": "1"}
    )
    yield connect(env, make_spec(LLAMA))
    dist.destroy_process_group()


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    (tmp_path / "text").write_bytes(bytes(range(256)) * 8)
    return open_corpus((str(tmp_path / "text"),), seq_len=16)


def plain(model: dict[str, Any]) -> Any:
    """Return the same model as Hugging Face builds it, whole and on the CPU."""
    config = AutoConfig.for_model(**model)
    return AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )


def full(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mixtral"])
def test_same_function_as_hugging_face(name: str, world: World, tmp_path: Path) -> None:
    """Weights and buffers loaded or rebuilt, the logits are those of the unsharded model."""
    reference = plain(MODELS[name]).eval()
    reference.save_pretrained(tmp_path)
    spec = make_spec(LLAMA, model={"path": str(tmp_path), "attention": "eager"})
    model = build_model(spec, world, fresh=True).eval()
    tokens = torch.arange(32).reshape(2, 16)
    with torch.no_grad():
        found, wanted = (m(input_ids=tokens).logits for m in (model, reference))
    assert torch.equal(found, wanted)
    for key, buffer in reference.named_buffers():
        assert torch.equal(full(model.get_buffer(key)), buffer), key


def test_weights_under_other_names_are_refused(world: World, tmp_path: Path) -> None:
    """transformers 5 packs the experts of its models; the files hold them one by one."""
    reference = plain(MODELS["mixtral"])
    if not any(key.endswith("experts.down_proj") for key, _ in reference.named_parameters()):
        pytest.skip("this transformers keeps experts as the files do")
    reference.save_pretrained(tmp_path)
    with pytest.raises(SpecError, match="experts"):
        build_model(make_spec(LLAMA, model={"path": str(tmp_path)}), world, fresh=True)


def test_bf16_files_fill_fp32_weights(world: World, tmp_path: Path) -> None:
    reference = plain(LLAMA).to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    model = build_model(make_spec(LLAMA, model={"path": str(tmp_path)}), world, fresh=True)
    for key, parameter in reference.named_parameters():
        found = full(model.get_parameter(key))
        assert found.dtype == torch.float32
        assert torch.equal(found, parameter.float())


def test_whole_numbers_are_no_weights(world: World, tmp_path: Path) -> None:
    plain(LLAMA).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"dtype":"F32"', b'"dtype":"I32"'))
    with pytest.raises(SpecError, match=r"is I32 in the files.* do not train"):
        build_model(make_spec(LLAMA, model={"path": str(tmp_path)}), world, fresh=True)


@pytest.mark.parametrize("name", MODELS)
def test_first_weights_are_hugging_faces_kind(name: str, world: World) -> None:
    model = build_model(make_spec(MODELS[name]), world, fresh=True)
    wanted = dict(plain(MODELS[name]).named_parameters())
    found = dict(model.named_parameters())
    assert set(found) == set(wanted)
    for key, parameter in found.items():
        value, like = full(parameter).detach(), wanted[key].detach()
        assert value.dtype == torch.float32
        assert value.shape == like.shape
        assert float(value.mean()) == pytest.approx(float(like.mean()), abs=0.01), key
        spread = float(like.std()) if like.numel() > 1 else 0.0
        assert float(value.std()) == pytest.approx(spread, rel=0.3, abs=1e-6), key


def test_first_weights_follow_the_seed(world: World) -> None:
    def weights(seed: int) -> dict[str, Any]:
        model = build_model(make_spec(LLAMA, seed=seed), world, fresh=True)
        return {key: full(p).detach() for key, p in model.named_parameters()}

    first, again, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[key], again[key]) for key in first)
    key = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(first[key], other[key])
    assert not torch.equal(first[key], first[key.replace("layers.0", "layers.1")])


def test_drawing_weights_leaves_the_generators_alone(world: World) -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    build_model(make_spec(LLAMA), world, fresh=True)
    assert torch.equal(torch.rand(3), wanted)


def test_tied_weights_stay_tied(world: World) -> None:
    model = build_model(make_spec(MODELS["llama-tied"]), world, fresh=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"config": {"model_type": "nonesuch"}}, "nonesuch"),
        ({"path": "/nowhere/at/all"}, "nowhere"),
        ({"config": {"model_type": "bert"}}, "bert is an encoder.*is_decoder: true"),
        ({"config": {"model_type": "xlm-roberta"}}, "is an encoder"),
    ],
)
def test_models_that_cannot_be_built(model: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        build_on_meta(make_spec(LLAMA, model=model).model)


def test_folder_without_weights(world: World, tmp_path: Path) -> None:
    AutoConfig.for_model(**LLAMA).save_pretrained(tmp_path)
    with pytest.raises(SpecError, match="safetensors"):
        build_model(make_spec(LLAMA, model={"path": str(tmp_path)}), world, fresh=True)


def test_blocks_are_found() -> None:
    for config in MODELS.values():
        model = build_on_meta(make_spec(config).model)
        assert len(decoder_blocks(model)) == 2


MAMBA: dict[str, Any] = {
    "model_type": "mamba",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 256,
}


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (BERT, ["bert.encoder.layer.0", "bert.encoder.layer.1"]),
        (MAMBA, ["backbone.layers.0", "backbone.layers.1"]),
    ],
    ids=["with the embedding among them", "one inside another"],
)
def test_blocks_where_more_must_not_be_split(config: dict[str, Any], names: list[str]) -> None:
    assert list(decoder_blocks(build_on_meta(make_spec(config).model))) == names


def test_bf16_keeps_fp32_weights(world: World, corpus: Corpus) -> None:
    training = parts.build(make_spec(LLAMA, precision="bf16"), world, corpus, fresh=True)
    parts.train_step(training)
    assert {p.dtype for p in training.model.parameters()} == {torch.float32}
    moments = [s["exp_avg"].dtype for s in training.state.optimizer.state.values()]
    assert set(moments) == {torch.float32}


def test_step_equals_a_plain_one(world: World, corpus: Corpus) -> None:
    """Loss, gradient norm and new weights are those of one big batch without any of this."""
    spec = make_spec(LLAMA, clip_norm=0.5, warmup_steps=0, lr=0.01, lr_schedule="constant")
    training = parts.build(spec, world, corpus, fresh=True)
    reference = plain(LLAMA)
    reference.load_state_dict({k: full(v) for k, v in training.model.state_dict().items()})
    optimizer = parts.build_optimizer(reference, spec)
    windows = torch.from_numpy(corpus.windows(training.sampler.ids(np.arange(4))))
    logits = reference(input_ids=windows[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    optimizer.step()
    result = parts.train_step(training)
    assert result.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert result.grad_norm == pytest.approx(float(norm), rel=1e-4)
    assert result.lr == 0.01
    for key, parameter in reference.named_parameters():
        found = full(training.model.get_parameter(key))
        assert torch.allclose(found, parameter, atol=1e-4), key


@pytest.mark.parametrize("accumulate", ["sharded", "unsharded"])
def test_accumulation_changes_nothing(world: World, corpus: Corpus, accumulate: str) -> None:
    def curve(micro_batch: int) -> list[float]:
        spec = make_spec(LLAMA, micro_batch=micro_batch, accumulate=accumulate)
        training = parts.build(spec, world, corpus, fresh=True)
        return [parts.train_step(training).grad_norm for _ in range(3)]

    assert curve(1) == pytest.approx(curve(4), rel=1e-4)


def test_exploding_loss_is_an_error(world: World, corpus: Corpus) -> None:
    spec = make_spec(LLAMA, lr=1e30, clip_norm=None)
    training = parts.build(spec, world, corpus, fresh=True)
    parts.train_step(training)
    with pytest.raises(FloatingPointError, match="step 2"):
        parts.train_step(training)
    assert training.state.step == 1


def test_random_states_go_round(world: World) -> None:
    seed_all(seed=1, step=2, rank=0)
    random.gauss(0, 1)  # leaves a second number behind, which belongs to the state
    np.random.standard_normal()
    saved = gather_states(world)
    wanted = draw()
    seed_all(seed=9, step=9, rank=9)
    restore_states(saved, world, seed=1, step=2)
    assert draw() == wanted


def test_another_world_size_seeds_anew(world: World) -> None:
    saved = json.dumps(json.loads(gather_states(world)) * 2)
    restore_states(saved, world, seed=1, step=2)
    first = draw()
    seed_all(seed=1, step=2, rank=0)
    assert draw() == first
    seed_all(seed=1, step=2, rank=1)
    assert draw() != first


def draw() -> list[float]:
    numbers = [random.gauss(0, 1), float(np.random.standard_normal()), float(torch.rand(()))]
    return [*numbers, random.random(), float(np.random.random())]


def test_changed_corpus_is_refused(world: World, corpus: Corpus) -> None:
    state = parts.build(make_spec(LLAMA), world, corpus, fresh=True).state
    state.check_corpus()
    saved = state.state_dict()
    state.load_state_dict(saved)
    state.check_corpus()
    state.load_state_dict({**saved, "data": {"position": 0, "fingerprint": "another"}})
    with pytest.raises(
        SpecError, match="the sources, their weights or seq_len changed after step 0"
    ):
        state.check_corpus()


def test_small_decay_groups(world: World) -> None:
    model = build_model(make_spec(LLAMA), world, fresh=True)
    optimizer = parts.build_optimizer(model, make_spec(LLAMA, weight_decay=0.3))
    decayed, still = optimizer.param_groups
    assert (decayed["weight_decay"], still["weight_decay"]) == (0.3, 0.0)
    assert {p.dim() for p in still["params"]} == {1}
