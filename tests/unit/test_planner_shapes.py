"""The planner's models and GPUs: sizes of models that exist, GPUs by the names that sites use."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.planner.families import FAMILIES, shape_of
from orchestrator.planner.gpus import GIB, GPUS, find
from orchestrator.planner.speed import network
from orchestrator.profile import FabricProfile

from .models import LLAMA_8B, NDR, gpu

# --- models -----------------------------------------------------------------------------------


# What Hugging Face says of these models: their config.json, and the size of their safetensors.
@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_8B, 8_030_261_248),
        ({**LLAMA_8B, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
          "head_dim": 64, "tie_word_embeddings": True}, 1_235_814_400),
        ({"model_type": "mistral", "vocab_size": 32768}, 7_248_023_552),
        ({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
          "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
          "vocab_size": 152064}, 7_615_616_512),
        ({"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
          "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
          "tie_word_embeddings": True}, 596_049_920),
        ({"model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384,
          "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1},
         2_506_172_416),
        ({"model_type": "gemma2"}, 2_614_341_888),
        ({"model_type": "mixtral", "num_key_value_heads": 8}, 46_702_792_704),
        ({"model_type": "granite", "hidden_size": 2048, "intermediate_size": 8192,
          "num_hidden_layers": 40, "num_key_value_heads": 8, "vocab_size": 49155,
          "tie_word_embeddings": True}, 2_533_531_648),
        ({"model_type": "olmo2", "vocab_size": 100352}, 7_298_617_344),
        ({"model_type": "phi3"}, 3_821_079_552),
        ({"model_type": "smollm3"}, 3_075_098_624),
    ],
)  # fmt: skip
def test_parameters_of_models_that_exist(config: dict[str, Any], parameters: int) -> None:
    assert shape_of(config).parameters == parameters


def test_a_mixture_multiplies_with_its_active_experts() -> None:
    shape = shape_of({"model_type": "mixtral", "num_key_value_heads": 8})
    assert shape.multiplied == pytest.approx(12.9e9 - 32000 * 4096, rel=0.01)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"model_type": "nonesuch"}, "nonesuch: .* the shapes of llama"),
        (
            {"model_type": "phi"},
            "of model_type phi: .* be trained all the same",
        ),
        ({"model_type": "phi3", "resid_pdrop": 0.1}, "phi3 without dropout, and resid_pdrop is"),
        (
            {
                "model_type": "smollm3",
                "use_sliding_window": True,
                "sliding_window": 9,
                "no_rope_layer_interval": 0,
            },
            "no_rope_layer_interval must be a whole number from 1",
        ),
        ({}, "model_type None"),
        ({**LLAMA_8B, "hidden_size": "wide"}, "hidden_size must be a whole number"),
        ({**LLAMA_8B, "num_hidden_layers": 0}, "num_hidden_layers"),
        ({**LLAMA_8B, "num_hidden_layers": 10**9}, "from 1 to 10000"),
        ({**LLAMA_8B, "hidden_size": 4}, "hidden_size 4 is less than num_attention_heads 32"),
        ({"model_type": "gemma2", "sliding_window_pattern": 0}, "sliding_window_pattern"),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": "x"},
            "max_window_layers must be a whole number from 0",
        ),
        ({"model_type": "a", "text_config": {"model_type": "b", "text_config": {}}}, "type b"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [1]}, "all alike"),
    ],
)
def test_shapes_that_are_not_known(config: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        shape_of(config)


def test_the_text_part_of_several_modalities() -> None:
    assert shape_of({"model_type": "llava", "text_config": LLAMA_8B}) == shape_of(LLAMA_8B)


def test_every_family_has_all_its_defaults() -> None:
    for family in FAMILIES:
        assert shape_of({"model_type": family}).parameters > 1e9


# --- GPUs and networks ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "gib", "name"),
    [
        ("H100-80GB-SXM5", None, "H100-80"),
        ("NVIDIA H100 80GB HBM3", None, "H100-80"),
        ("H100 PCIe", None, "H100-PCIE-80"),
        ("A100-SXM4-40GB", None, "A100-40"),
        ("A100-80GB", None, "A100-80"),
        ("A100", 80.0, "A100-80"),
        ("NVIDIA H200", None, "H200-141"),
        ("GH200 (H100 96GB)", None, "GH200-96"),
        ("NVIDIA GH200 480GB", None, "GH200-96"),
    ],
)
def test_gpus_by_the_names_that_sites_use(model: str, gib: float | None, name: str) -> None:
    found = find(model, gib)
    assert found
    assert found.name == name


def test_a_gpu_of_another_size_and_one_that_is_not_known() -> None:
    leonardo = find("A100-64GB-custom")
    assert leonardo
    assert leonardo.memory_bytes == pytest.approx(63 * GIB, rel=0.01)
    assert find("MI300X") is None


def test_rates_of_gpus_are_dense() -> None:
    assert {one.bf16_flops for one in GPUS} == {312e12, 756e12, 989.4e12}
    assert all(one.fp8_flops is None or one.fp8_flops < 2.1 * one.bf16_flops for one in GPUS)


def test_a_network_from_the_profile_or_from_its_rate() -> None:
    told = network(gpu(), FabricProfile(kind="infiniband", busbw_gbs=380), per_node=8)
    assert (told.between, told.known) == (380e9, True)
    assert network(gpu(), NDR, per_node=8).between == pytest.approx(337.5e9)
    slow = network(gpu(), FabricProfile(kind="ethernet"), per_node=8)
    assert (slow.between < 5e9, slow.known) == (True, False)
