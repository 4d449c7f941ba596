"""What is noted of `train:` at a submission; nothing of it is refused."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from orchestrator.spec.train import TrainSpec
from orchestrator.submitting.model_remarks import of_config
from orchestrator.submitting.train_remarks import of_train

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("x")
    return tmp_path


def train(here: Path, **changes: Any) -> TrainSpec:
    spec = {
        "model": {"config": LLAMA},
        "data": {"text_files": ["a.txt"], "seq_len": 8},
        "steps": 30,
        "global_batch": 8,
        **changes,
    }
    return TrainSpec.model_validate(spec).relative_to(here)


def notes(here: Path, **changes: Any) -> list[str]:
    return list(of_train(train(here, **changes)))


def model(here: Path, *, config: object = LLAMA, weights: tuple[str, ...] = ()) -> Path:
    """Make a folder with a model of one file, or of an index with `weights`."""
    folder = here / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model-1.safetensors").write_bytes(b"")
    index = {"weight_map": dict.fromkeys(weights, "model-1.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_nothing_is_noted_of_what_is_well(here: Path) -> None:
    assert notes(here) == []
    assert notes(here, model={"path": str(model(here))}, eval={"text_files": ["*.txt"]}) == []


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"eval": {"text_files": ["no/*"]}}, "train.eval.text_files: nothing matches {here}/no/*"),
        (
            {"data": {"sources": [{"text_files": ["a.txt"]}, {"jsonl": ["b"]}], "seq_len": 8}},
            "train.data.sources.1.jsonl: nothing matches {here}/b here; do the nodes see more?",
        ),
        (
            {"data": {"dataset": "set", "seq_len": 8}},
            "train.data.dataset: there is no folder {here}/set here; do the nodes see more?",
        ),
        (
            {"data": {"shards": ["s*"], "seq_len": 8}},
            "train.data.shards: there is no folder {here}/s* here; do the nodes see more?",
        ),
        (
            {"data": {"text_files": ["a.txt"], "seq_len": 8, "tokenizer": "gpt2"}},
            "train.data.tokenizer: there is no folder {here}/gpt2 here, and a name on the Hub is"
            " not downloaded; do the nodes see more?",
        ),
        (
            {"model": {"path": "meta-llama/Llama-3.1-8B"}},
            "train.model.path: there is no {here}/meta-llama/Llama-3.1-8B/config.json here; it is"
            " to be a local folder, and fsdpq downloads nothing; do the nodes see more?",
        ),
        ({"model": {"path": "a.txt"}}, "train.model.path: there is no {here}/a.txt/config.json"),
    ],
)
def test_what_is_not_here_is_named_by_its_key(
    here: Path, changes: dict[str, Any], note: str
) -> None:
    (found,) = notes(here, **changes)
    assert found.startswith(note.format(here=here))


def test_a_folder_of_shards_without_an_index(here: Path) -> None:
    (here / "web").mkdir()
    (found,) = notes(here, data={"shards": ["web"], "seq_len": 8})
    assert found.startswith("train.data.shards: ")
    assert f"{here}/web" in found
    assert "index.json" in found


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"warmup_steps": 30}, "train.warmup_steps: 30 is not below steps: 30, so the learning"),
        ({"nonfinite_limit": 3}, "train.nonfinite_limit: does nothing without nonfinite: skip"),
        ({"checkpoint": {"mtbf_s": 60}}, "train.checkpoint.mtbf_s: does nothing without every_"),
        ({"checkpoint": {"max_interval_s": 60}}, "train.checkpoint.max_interval_s: does nothing"),
        (
            {"lr_schedule": "constant", "min_lr_ratio": 0.5},
            "train.min_lr_ratio: does nothing with lr_schedule: constant",
        ),
        (
            {"data": {"text_files": ["a.txt"], "field": "body", "seq_len": 8}},
            "train.data.field: does nothing beside text_files",
        ),
    ],
)
def test_keys_that_do_nothing(here: Path, changes: dict[str, Any], note: str) -> None:
    (found,) = notes(here, **changes)
    assert found.startswith(note)


@pytest.mark.parametrize(
    "changes",
    [
        {"warmup_steps": 29},
        {"nonfinite": "skip", "nonfinite_limit": 3},
        {"nonfinite_limit": 10},
        {"checkpoint": {"every_steps": "auto", "mtbf_s": 60, "max_interval_s": 60}},
        {"data": {"jsonl": ["a.txt"], "field": "body", "seq_len": 8}},
        {"lr_schedule": "linear", "min_lr_ratio": 0.5},
    ],
)
def test_keys_that_do_something(here: Path, changes: dict[str, Any]) -> None:
    assert notes(here, **changes) == []


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"vocab_size": 255}, "train.model: vocab_size 255 is below 256, and tokens are bytes"),
        (
            {"max_position_embeddings": 7},
            "train.data.seq_len: 8 is beyond the model's max_position",
        ),
        ({"n_positions": 7}, "train.data.seq_len: 8 is beyond the model's n_positions, 7"),
        (
            {"num_attention_heads": 5},
            "train.model: hidden_size 64 is not a multiple of num_attention_heads 5",
        ),
        (
            {"num_key_value_heads": 3},
            "train.model: num_attention_heads 4 is not a multiple of num_key_value_heads 3",
        ),
        ({"text_config": {"vocab_size": 9}}, "train.model: vocab_size 9 is below 256"),
        (
            {"model_type": "gpt2", "n_embd": 10, "n_head": 4},
            "train.model: n_embd 10 is not a multiple of n_head 4",
        ),
    ],
)
def test_sizes_that_do_not_fit(here: Path, config: dict[str, Any], note: str) -> None:
    (found,) = of_config({**LLAMA, **config}, train(here))
    assert found.startswith(note)


@pytest.mark.parametrize(
    "config",
    [
        {"vocab_size": 256, "max_position_embeddings": 8, "num_key_value_heads": 2},
        {"max_position_embeddings": 7, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"num_attention_heads": 5, "head_dim": 16},
        {"num_attention_heads": 5, "model_type": "qwen3"},  # its heads have a width of their own
        {"vocab_size": "many", "hidden_size": None, "num_attention_heads": 0},
    ],
)
def test_sizes_that_fit_or_are_for_transformers_to_judge(
    here: Path, config: dict[str, Any]
) -> None:
    assert list(of_config({**LLAMA, **config}, train(here))) == []


@pytest.mark.parametrize(
    ("key", "meant"),
    [("hiden_size", "hidden_size"), ("num_hidden_layer", "num_hidden_layers")],
)
def test_a_mistyped_key_of_a_configuration(here: Path, key: str, meant: str) -> None:
    (found,) = notes(here, model={"config": {**LLAMA, key: 64}})
    assert found.startswith(f"train.model.config: is {key} meant to be {meant}?")


@pytest.mark.parametrize(
    "key", ["moe_intermediate_size", "hidden_sizes", "mlp_hidden_size", "head_dim", "n_layer"]
)
def test_keys_of_other_families_are_none(here: Path, key: str) -> None:
    assert notes(here, model={"config": {**LLAMA, key: 64}}) == []


def test_a_mistyped_family(here: Path) -> None:
    (note,) = notes(here, model={"config": {**LLAMA, "model_type": "lama"}})
    assert note.startswith("train.model: is model_type lama meant to be llama? As it is, the job")


def test_an_encoder(here: Path) -> None:
    bert = {**LLAMA, "model_type": "bert"}
    (note,) = notes(here, model={"config": bert})
    assert note.startswith("train.model: bert is an encoder")
    assert "the job would end with that" in note
    assert notes(here, model={"config": {**bert, "is_decoder": True}}) == []
    (note,) = notes(here, model={"path": str(model(here, config=bert))})
    assert note.startswith("train.model: bert is an encoder")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "phi3", "vocab_size": 256}, "32000, the default of phi3, is not below"),
        ({"model_type": "smollm3", "vocab_size": 128004}, "the default of smollm3"),
        (
            {"vocab_size": 300, "pad_token_id": 300},
            "300, as it is set, is not below vocab_size 300",
        ),
    ],
)
def test_a_padding_token_that_is_no_word(here: Path, changes: dict[str, Any], said: str) -> None:
    (note,) = notes(here, model={"config": {**LLAMA, **changes}})
    assert said in note
    changes["pad_token_id"] = None
    assert notes(here, model={"config": {**LLAMA, **changes}}) == []


def test_a_size_that_is_no_number(here: Path) -> None:
    found = notes(here, model={"config": {**LLAMA, "num_hidden_layers": "two"}})
    assert found == ["train.model.config.num_hidden_layers: 'two' is no whole number"]
    assert notes(here, model={"config": {**LLAMA, "num_key_value_heads": None}}) == []


def test_adapters_of_layers_that_are_not_there(here: Path) -> None:
    (note,) = notes(here, lora={"target_modules": ["q_proj", "query"]})
    assert note.startswith("train.lora.target_modules: query is no linear layer of a block; there")
    assert note.endswith("q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj")
    (note,) = notes(here, lora={"target_modules": ["query"]})
    assert note.endswith("down_proj. The job would end with that")
    assert notes(here, lora={"target_modules": "all-linear"}) == []
    assert notes(here, lora={"target_modules": ["self_attn.q_proj"]}) == []


def test_adapters_of_fused_layers(here: Path) -> None:
    fused = {"config": {**LLAMA, "model_type": "phi3"}}
    (note,) = notes(here, model=fused, lora={"target_modules": ["qkv_proj", "q_proj"]})
    assert note.startswith("train.lora.target_modules: q_proj is no linear layer of a block; there")
    assert note.endswith("qkv_proj, o_proj, gate_up_proj, down_proj")


@pytest.mark.parametrize("name", ["olmo", "phi", "pixtral", "mllama", "smolvlm"])
def test_families_that_are_called_almost_like_others(here: Path, name: str) -> None:
    assert notes(here, model={"config": {**LLAMA, "model_type": name}}) == []


def test_a_pattern_that_freezes_nothing_of_a_new_model(here: Path) -> None:
    (note,) = notes(here, freeze=["nothing.*", "model.layers.1.*", "lm_head.weight"])
    assert note.startswith("train.freeze: nothing.* is no name of a parameter")
    several = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}
    assert notes(here, freeze=["model.vision_tower.*"], model={"config": several}) == []


def test_a_small_vocabulary_is_well_where_tokens_are_no_bytes(here: Path) -> None:
    other = train(here, data={"text_files": ["a.txt"], "seq_len": 8, "tokenizer": "t"})
    assert list(of_config({**LLAMA, "vocab_size": 99}, other)) == []


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_configuration_that_does_not_read(here: Path, text: str) -> None:
    folder = model(here)
    (folder / "config.json").write_text(text)
    (found,) = notes(here, model={"path": "model"})
    assert found.startswith(f"train.model.path: {folder}/config.json ")


def test_the_configuration_in_a_folder_is_looked_at(here: Path) -> None:
    model(here, config={**LLAMA, "vocab_size": 100})
    (found,) = notes(here, model={"path": "model"})
    assert found.startswith("train.model: vocab_size 100")


def test_a_folder_without_weights(here: Path) -> None:
    folder = model(here)
    (folder / "model-1.safetensors").unlink()
    (found,) = notes(here, model={"path": "model"})
    assert found == f"train.model.path: {folder} holds no *.safetensors files here"


def test_a_pattern_that_freezes_nothing(here: Path) -> None:
    folder = model(here, weights=("model.norm.weight", "model.embed_tokens.weight"))
    freeze = ["model.embed_tokens.*", "lm_head.*", "layers.*"]
    (found,) = notes(here, model={"path": "model"}, freeze=freeze)
    assert found == (
        f"train.freeze: layers.* is no name of a weight in {folder}; names are such as"
        " model.embed_tokens.weight, model.norm.weight"
    )


def test_names_in_the_header_of_a_single_file(here: Path) -> None:
    folder = model(here)
    (folder / "model.safetensors.index.json").unlink()
    header = json.dumps({"model.w": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})
    data = struct.pack("<Q", len(header)) + header.encode()
    (folder / "model.safetensors").write_bytes(data)
    (found,) = notes(here, model={"path": "model"}, freeze=["model.x", "model.w"])
    assert found.startswith("train.freeze: model.x is no name")


@pytest.mark.parametrize("weights", [(), ("h.0.attn.weight",)])
def test_names_that_cannot_be_judged_here(here: Path, weights: tuple[str, ...]) -> None:
    model(here, weights=weights)
    assert notes(here, model={"path": "model"}, freeze=["transformer.h.*"]) == []
