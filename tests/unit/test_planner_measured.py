"""The planner against what was measured on 2 H200, once: tests/gpu/planner_measured.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.planner.families import shape_of
from orchestrator.planner.gpus import Gpu, find
from orchestrator.planner.memory import memory
from orchestrator.planner.moments import moments
from orchestrator.planner.rates import rate
from orchestrator.planner.speed import network, speed
from orchestrator.planner.tensors import saved_per_token
from orchestrator.planner.workload import Workload, workload
from orchestrator.profile import FabricProfile
from tests.gpu.planner_cases import CASES, MODELS, Case
from tests.gpu.planner_measured import FROM_SPEED, MEASURED, rows

ROWS = {row["name"]: row for row in rows()}
LLAMA = shape_of(MODELS["1.1B"])


def h200() -> Gpu:
    found = find("H200")
    assert found
    return found


def case_of(name: str) -> Case:
    return CASES[name] if name in CASES else FROM_SPEED[name][0]


def work_of(case: Case) -> Workload:
    spec = case.spec(2, Path("text"), tiny=False)
    return workload(spec, shape_of(MODELS[case.model]), world_size=2)


@pytest.mark.parametrize("kind", ["allocated", "reserved"])
@pytest.mark.parametrize("name", ROWS)
def test_memory_is_within_five_per_cent_and_not_too_low(name: str, kind: str) -> None:
    row = ROWS[name]
    assert -0.02 <= row["predicted"][kind] / row["measured"][kind] - 1 <= 0.05


@pytest.mark.parametrize("name", MEASURED)
def test_cuda_and_nccl(name: str) -> None:
    row = ROWS[name]
    assert row["predicted"]["context"] == pytest.approx(row["measured"]["context"], rel=0.02)


# Sums of whole gradients take longer than their bytes do; why is not known.
@pytest.mark.parametrize("name", [name for name in ROWS if name != "accumulate-unsharded"])
def test_steps_are_within_what_is_said(name: str) -> None:
    row = ROWS[name]
    assert row["predicted"]["step_s"] == pytest.approx(row["measured"]["step_s"], rel=0.15)


def step_s(threads: int = 8, **changes: Any) -> float:
    net = network(h200(), FabricProfile(kind="none"), per_node=2)
    done = Workload(batch=1, seq_len=2048, shard=2, deterministic=False, **changes)
    return speed(LLAMA, done, h200(), net, per_node=2, threads=threads).step_s


def test_an_offloaded_optimizer_takes_as_long_as_its_threads_and_the_bus_do() -> None:
    one, two, many = (step_s(offload=True, threads=n) for n in (1, 2, 64))
    state = 40 * LLAMA.parameters / 2 / 12.4e9
    assert one - two == pytest.approx(state / 2)
    # Two gatherings and the gradients, at 50 GB/s, and host memory's own limit.
    sent = 3 * 4 * LLAMA.parameters / 2 / 50e9
    assert many > step_s() + sent


def test_each_micro_batch_gathers_and_scatters_again() -> None:
    one, two = (step_s(micro_batches=n) for n in (1, 2))
    optimizer = 40 * LLAMA.parameters / 2 / (0.7 * 4800e9)
    assert two - one > one - optimizer  # and adds up


def test_no_share_is_more_than_products_of_matrices_reach() -> None:
    works = (
        Workload(batch=4, seq_len=4096, compiled=on) for on in (False, True)
    )  # 771 TFLOP/s in bf16, measured
    assert all(rate(LLAMA, one, h200()).share * h200().bf16_flops < 771e12 for one in works)


def test_row_wise_scales_are_slower_than_one_of_a_tensor() -> None:
    row, tensor = (
        rate(LLAMA, Workload(batch=8, seq_len=4096, compiled=True, fp8=how), h200()).share
        for how in ("rowwise", "tensorwise")
    )
    assert row < tensor


@pytest.mark.parametrize(
    ("precision", "kv_heads", "fused"),
    [("bf16", 4, True), ("fp32", 4, False), ("fp32", 16, True)],
)
def test_which_attention_has_a_kernel(precision: str, kv_heads: int, fused: bool) -> None:
    config = {**MODELS["1.1B"], "num_key_value_heads": kv_heads}
    spec = Case("1.1B", 1, 2048, {"precision": precision}).spec(2, Path("text"), tiny=False)
    assert workload(spec, shape_of(config), world_size=2).fused_attention == fused


def test_without_a_kernel_all_scores_are_kept() -> None:
    plain = Workload(batch=1, seq_len=2048, width=4)
    whole = Workload(batch=1, seq_len=2048, width=4, fused_attention=False)
    more = sum(saved_per_token(LLAMA, whole).values()) - sum(saved_per_token(LLAMA, plain).values())
    scores = 4 * LLAMA.heads * 2048
    repeated = 2 * 4 * (LLAMA.query_width - LLAMA.kv_width)
    assert more == scores + repeated - 4 * LLAMA.heads


def test_fp8_keeps_no_inputs_of_products_but_for_adapters() -> None:
    def saved(**changes: Any) -> set[str]:
        made = Workload(batch=1, seq_len=2048, compiled=True, **changes)
        return set(saved_per_token(LLAMA, made))

    gone = {"norm1.out", "norm2.out", "product"}
    assert saved() - saved(fp8="rowwise") == gone
    adapted = {"rank": 8, "adapted": ("q_proj", "gate_proj", "down_proj")}
    assert gone <= saved(fp8="rowwise", **adapted)


def test_dropout_keeps_a_copy_of_what_goes_into_each_adapter() -> None:
    def saved(**changes: Any) -> float:
        made = Workload(batch=1, seq_len=2048, rank=8, adapted=("q_proj", "k_proj"), **changes)
        return sum(saved_per_token(LLAMA, made).values())

    copies = 2 * 3 * LLAMA.hidden  # bf16, and a byte that says what was dropped
    assert saved(dropout=True) - saved() == copies - 2 * LLAMA.hidden


def test_communicators_of_a_mesh() -> None:
    def context(**changes: Any) -> float:
        return memory(LLAMA, Workload(batch=1, seq_len=2048, **changes), h200()).context

    alone, one, two, three = (
        context(**mesh)
        for mesh in ({}, {"shard": 8}, {"replicate": 8}, {"replicate": 2, "shard": 4})
    )
    assert one - alone == two - one == three - two > 0


def test_parameters_from_host_memory_take_room_beside_what_is_gathered() -> None:
    """The allocator's pool of the stream that gathers holds them in fp32, and cast."""
    here, there = (
        max(moment.gathered for moment in moments(LLAMA, one, processors=132))
        for one in (Workload(batch=4, seq_len=4096, shard=2, offload=on) for on in (False, True))
    )
    assert there - here == 6 * (LLAMA.embedding + LLAMA.hidden) / 2


def test_sums_of_unsharded_gradients_leave_as_they_are_scattered() -> None:
    """What is scattered is in another pool: it takes none of the room that they give back."""
    done = Workload(batch=2, seq_len=4096, shard=2, micro_batches=2, unsharded_sums=True)
    scattered = max(moment.scattered for moment in moments(LLAMA, done, processors=132))
    assert scattered == pytest.approx(4 * LLAMA.parameters / 2)
