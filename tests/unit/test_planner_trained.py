"""What of a model trains, and what that and a mask change of memory and time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.planner.activations import block_bytes
from orchestrator.planner.families import shape_of
from orchestrator.planner.gpus import Gpu, find
from orchestrator.planner.memory import memory
from orchestrator.planner.speed import network, speed
from orchestrator.planner.state import state_of
from orchestrator.planner.trained import block_parameters, trained
from orchestrator.planner.workload import Workload, workload
from orchestrator.profile import FabricProfile
from tests.gpu.planner_cases import MODELS, Case

LLAMA = shape_of(MODELS["1.1B"])
TIED = shape_of(MODELS["qwen3 0.6B"])
PLAIN = Workload(batch=4, seq_len=4096, shard=2, deterministic=False)
LOWER = ("model.embed_tokens.*", "model.layers.[0-7].*")


def h200() -> Gpu:
    found = find("H200")
    assert found
    return found


def work_of(model: str, batch: int, seq_len: int, **keys: Any) -> Workload:
    spec = Case(model, batch, seq_len, keys).spec(2, Path("text"), tiny=False)
    return workload(spec, shape_of(MODELS[model]), world_size=2)


@pytest.mark.parametrize("model", MODELS)
def test_a_block_is_the_sum_of_its_parameters(model: str) -> None:
    shape = shape_of(MODELS[model])
    assert sum(size for _, _, size in block_parameters(shape)) == shape.block


def test_everything_trains_unless_it_is_named() -> None:
    found = trained(LLAMA, ())
    whole = found.embedding + sum(found.blocks) + found.norm + found.head
    assert (whole, found.first()) == (LLAMA.parameters, 0)


def test_patterns_name_blocks_and_parts_of_them() -> None:
    lower = trained(LLAMA, LOWER)
    assert lower.blocks == (0,) * 8 + (LLAMA.block,) * 8
    assert (lower.embedding, lower.first()) == (0, 8)
    mlp = trained(LLAMA, ("*.mlp.*",))
    assert mlp.idle[0] == {"gate_proj", "up_proj", "down_proj"}
    assert mlp.blocks[0] == LLAMA.block - LLAMA.mlp_parameters


@pytest.mark.parametrize("pattern", ["lm_head.*", "model.embed_tokens.*"])
def test_a_tied_head_is_frozen_by_either_name(pattern: str) -> None:
    found = trained(TIED, (pattern,))
    assert (found.embedding, found.head) == (0, 0)


def test_what_does_not_train_has_neither_gradient_nor_moments() -> None:
    whole = state_of(LLAMA, PLAIN)
    lower = state_of(LLAMA, replace(PLAIN, freeze=LOWER))
    assert lower.parameters == whole.parameters
    frozen = LLAMA.embedding + 8 * LLAMA.block
    assert whole.trained - lower.trained == frozen
    assert whole.optimizer - lower.optimizer == 8 * frozen / 2


def test_blocks_below_all_that_trains_keep_nothing() -> None:
    def activations(**changes: Any) -> float:
        return memory(LLAMA, replace(PLAIN, **changes), h200()).kinds["activations"]

    kept = block_bytes(LLAMA, PLAIN).kept
    assert activations() - activations(freeze=LOWER) == pytest.approx(8 * kept, rel=0.01)
    # Gradients still go through frozen blocks to what lies below them.
    above = activations(freeze=("model.layers.[0-7].*",))
    assert activations(freeze=LOWER) < above < activations()


def test_blocks_that_do_not_train_take_less_time() -> None:
    net = network(h200(), FabricProfile(kind="none"), per_node=2)

    def step_s(**changes: Any) -> float:
        return speed(LLAMA, replace(PLAIN, **changes), h200(), net, per_node=2).step_s

    # A half has a forward alone: a third of its forward and backward.
    assert 0.6 < step_s(freeze=LOWER) / step_s() < 0.72
    assert 0.6 < step_s(rank=16, adapted=("q_proj",)) / step_s() < 0.72


def test_documents_and_windows_give_attention_a_mask() -> None:
    assert work_of("1.1B", 4, 4096).masked == 0
    packed = work_of("1.1B", 4, 4096, data={"packing": "documents"})
    assert (packed.masked, packed.several_masks) == (1, True)
    assert work_of("mistral 1.3B", 2, 4096).masked == 1
    assert work_of("mistral 1.3B", 2, 1023).masked == 0  # no sequence is longer than the window
    assert work_of("gemma3 1B", 2, 2048).masked == 22 / 26


def test_a_window_of_null_is_none() -> None:
    config = {**MODELS["mistral 1.3B"], "sliding_window": None}
    assert shape_of(config).windowed == 0
    assert shape_of({"model_type": "mistral"}).window == 4096


def test_each_block_makes_a_mask_of_its_own_unless_it_is_compiled() -> None:
    masked = replace(PLAIN, masked=1.0)
    more = block_bytes(LLAMA, masked).kept - block_bytes(LLAMA, PLAIN).kept
    bias = 2 * 4 * 4096 * 4096
    repeated = 2 * 2 * (LLAMA.query_width - LLAMA.kv_width) * PLAIN.tokens
    assert more == bias + repeated
    compiled = replace(PLAIN, compiled=True)
    again = replace(masked, compiled=True)
    assert block_bytes(LLAMA, again).kept - block_bytes(LLAMA, compiled).kept == repeated


def test_keys_that_are_repeated_for_a_mask_have_a_kernel_in_fp32() -> None:
    assert not work_of("1.1B", 1, 4096, precision="fp32").fused_attention
    packed = {"data": {"packing": "documents"}}
    assert work_of("1.1B", 1, 4096, precision="fp32", **packed).fused_attention


def test_adapters_of_fused_projections() -> None:
    shape = shape_of({"model_type": "phi3"})
    spec = Case("1.1B", 2, 64, {"lora": {"rank": 4}}).spec(2, Path("text"), tiny=False)
    work = workload(spec, shape, world_size=2)
    assert work.adapted == ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    hidden, wide = 3072, 8192
    each = (hidden + 3 * hidden) + 2 * hidden + (hidden + 2 * wide) + (wide + hidden)
    assert state_of(shape, work).trained == 32 * 4 * each
