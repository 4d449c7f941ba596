"""Memory, time and disk of a training, by arithmetic; tests/e2e counts what torch really does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.checkpoint.interval import daly_s
from orchestrator.planner.families import shape_of
from orchestrator.planner.gpus import GIB
from orchestrator.planner.memory import memory
from orchestrator.planner.saves import saves
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.speed import network, speed
from orchestrator.planner.tensors import saved_per_token
from orchestrator.planner.workload import workload
from orchestrator.profile import FabricProfile
from orchestrator.spec.train import CheckpointSpec, rows_at_once

from .models import LLAMA_8B, NDR, gpu, train, work

# --- what a job file asks for -----------------------------------------------------------------


def test_the_trainers_keys_are_read() -> None:
    shape = shape_of(LLAMA_8B)
    found = workload(
        train(micro_batch=2, mesh={"replicate": 2, "shard": 8}, accumulate="unsharded"),
        shape,
        world_size=16,
    )
    assert (found.batch, found.micro_batches) == (2, 2)
    assert (found.replicate, found.shard, found.unsharded_sums) == (2, 8, True)
    assert (found.width, found.checkpointing, found.rank) == (2, "off", 0)


def test_what_memory_is_traded_for_is_read() -> None:
    spec = train(
        activation_checkpointing="selective",
        compile=True,
        fp8="rowwise",
        cpu_offload=True,
        prefetch=2,
        micro_batch=4,
    )
    found = workload(spec, shape_of(LLAMA_8B), world_size=8)
    assert (found.checkpointing, found.compiled, found.fp8) == ("selective", True, "rowwise")
    assert (found.offload, found.prefetch, found.fused_loss) == (True, 2, True)
    assert (found.loss_rows, found.in_parts) == (2048, True)


def test_lora_is_read() -> None:
    lora = {"rank": 4, "target_modules": ["q_proj", "v_proj"]}
    found = workload(train(lora=lora), shape_of(LLAMA_8B), world_size=8)
    assert (found.rank, found.adapted) == (4, ("q_proj", "v_proj"))
    assert len(workload(train(lora={}), shape_of(LLAMA_8B), world_size=8).adapted) == 7


@pytest.mark.parametrize(
    ("tokens", "words", "chunks", "rows"),
    [(4096, 32000, 1, 4096), (4096, 32000, 4, 1024), (10, 256, 3, 4), (4096, 32000, "auto", 4096),
     (16384, 128256, "auto", 2048)],
)  # fmt: skip
def test_rows_of_the_loss(tokens: int, words: int, chunks: int | str, rows: int) -> None:
    assert rows_at_once(tokens, words, chunks) == rows


# --- memory -----------------------------------------------------------------------------------


def test_shards_shrink_and_activations_do_not() -> None:
    shape = shape_of(LLAMA_8B)
    few, many = (memory(shape, work(shard=n), gpu()) for n in (8, 64))
    for kind in ("parameters", "optimizer"):
        assert many.kinds[kind] == few.kinds[kind] / 8
    assert few.kinds["parameters"] == 4 * shape.parameters / 8
    assert many.kinds["activations"] == few.kinds["activations"]
    assert sum(many.to_json().values()) == pytest.approx(many.peak, abs=16)


def test_copies_do_not_shrink_the_shards() -> None:
    shape = shape_of(LLAMA_8B)
    one, two = (memory(shape, work(replicate=n), gpu()) for n in (1, 2))
    assert one.kinds == two.kinds
    assert two.context > one.context


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpointing": "selective"},
        {"checkpointing": "full"},
        {"compiled": True},
        {"batch": 1},
        {"rank": 8, "adapted": ("q_proj", "v_proj")},
        {"offload": True},
        {"loss_rows": 512},
    ],
)
def test_what_saves_memory(changes: dict[str, Any]) -> None:
    shape = shape_of(LLAMA_8B)
    plain = memory(shape, work(), gpu()).peak
    assert memory(shape, work(**changes), gpu()).peak < plain


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 4},
        {"micro_batches": 2},
        {"micro_batches": 2, "unsharded_sums": True},
        {"reshard": False},
        {"attention": "eager"},
    ],
)
def test_what_costs_memory(changes: dict[str, Any]) -> None:
    shape = shape_of(LLAMA_8B)
    assert memory(shape, work(**changes), gpu()).peak > memory(shape, work(), gpu()).peak


def test_full_recomputing_keeps_one_input_a_block() -> None:
    shape: ModelShape = shape_of(LLAMA_8B)
    lean = memory(shape, work(checkpointing="full", loss_rows=256), gpu())
    inputs = shape.layers * 2 * 2 * 4096 * shape.hidden
    block = 2 * 4096 * sum(saved_per_token(shape, work()).values())
    assert inputs < lean.kinds["activations"] < inputs + 2 * block


def test_an_offloaded_optimizer_is_in_host_memory() -> None:
    shape = shape_of(LLAMA_8B)
    found = memory(shape, work(offload=True), gpu())
    assert found.kinds["parameters"] == found.kinds["optimizer"] == 0
    assert found.host == 16 * shape.parameters / 8


def test_lora_keeps_the_moments_of_its_adapters_alone() -> None:
    shape = shape_of(LLAMA_8B)
    found = memory(shape, work(rank=16, adapted=("q_proj", "v_proj")), gpu())
    adapters = 32 * 16 * ((4096 + 4096) + (4096 + 1024))
    assert found.kinds["optimizer"] == 8 * adapters / 8
    assert found.kinds["parameters"] == 4 * (shape.parameters + adapters) / 8


# --- steps and saves --------------------------------------------------------------------------


def test_the_measured_step_of_a_billion_parameters() -> None:
    """Measured on 2 H200: 40.2 GiB with all logits, 0.296 s, a checkpoint of 12.3 GiB."""
    config = {
        **LLAMA_8B,
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
    }
    shape, h200 = shape_of(config), gpu("H200")
    done = work(batch=4, shard=2, deterministic=False)
    assert memory(shape, done, h200).allocated == pytest.approx(40.2 * GIB, rel=0.05)
    net = network(h200, FabricProfile(kind="none"), per_node=2)
    assert speed(shape, done, h200, net, per_node=2).step_s == pytest.approx(0.296, rel=0.05)
    found = saves(shape, done, CheckpointSpec(), step_s=0.311)
    assert found.checkpoint_bytes == pytest.approx(12.3 * GIB, rel=0.01)
    assert found.every_steps == int(found.every_s / 0.311)
    assert found.host_bytes == pytest.approx(6.15 * GIB + 400 * 2**20, rel=0.01)
    assert found.blocked_s < found.save_s <= found.every_s


def test_a_slow_network_is_waited_for() -> None:
    shape = shape_of(LLAMA_8B)
    done = work(shard=16)
    fast, slow = (
        speed(shape, done, gpu(), network(gpu(), one, per_node=8), per_node=8)
        for one in (NDR, FabricProfile(kind="ethernet"))
    )
    assert slow.exposed_s > 10 * fast.exposed_s
    assert slow.compute_s == fast.compute_s


def test_a_checkpoint_of_adapters_is_small() -> None:
    """If the model came from a directory, which has the rest."""
    shape = shape_of(LLAMA_8B)
    adapted = work(rank=16, adapted=("q_proj", "v_proj"))
    adapters = 32 * 16 * ((4096 + 4096) + (4096 + 1024))
    small = saves(shape, replace(adapted, base_is_kept=True), CheckpointSpec(), step_s=None)
    assert small.checkpoint_bytes == 12 * adapters
    large = saves(shape, adapted, CheckpointSpec(), step_s=None)
    assert large.checkpoint_bytes == 12 * adapters + 4 * shape.parameters


def test_a_save_that_blocks_costs_all_its_time_and_no_memory() -> None:
    shape = shape_of(LLAMA_8B)
    behind = saves(shape, work(), CheckpointSpec(), step_s=1.0)
    ahead = saves(shape, work(), CheckpointSpec(mode="sync"), step_s=1.0)
    assert ahead.blocked_s == ahead.save_s == behind.save_s
    assert ahead.host_bytes == 0.0
    assert ahead.every_s == daly_s(ahead.save_s, 4 * 3600)  # what costs more is done more seldom
    assert behind.every_s == 10 * behind.save_s > daly_s(0.1, 4 * 3600)


@pytest.mark.parametrize(
    ("mode", "gpus", "waits"),
    [("auto", False, True), ("async", False, False), ("sync", True, True), ("auto", True, False)],
)
def test_without_gpus_auto_waits_for_its_saves(mode: Any, gpus: bool, waits: bool) -> None:
    spec = CheckpointSpec(mode=mode)
    found = saves(shape_of(LLAMA_8B), work(), spec, step_s=1.0, gpus=gpus)
    assert (found.blocked_s == found.save_s) is waits
    assert (found.host_bytes == 0.0) is waits


def test_copies_of_a_shard_are_saved_by_one_of_their_ranks() -> None:
    shape, spec = shape_of(LLAMA_8B), CheckpointSpec(mode="async")
    one, two = (saves(shape, work(replicate=n), spec, step_s=1.0) for n in (1, 2))
    assert two.checkpoint_bytes == one.checkpoint_bytes
    extra = 400 * 2**20
    assert two.host_bytes - extra == pytest.approx((one.host_bytes - extra) / 2)
