"""The planner's sizes, memory and layouts. What torch really does is counted in tests/e2e."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.checkpoint.interval import daly_s
from orchestrator.errors import SpecError
from orchestrator.planner import forecast, lines
from orchestrator.planner.families import FAMILIES, shape_of
from orchestrator.planner.forecast import Forecast
from orchestrator.planner.gpus import GIB, GPUS, Gpu, find
from orchestrator.planner.layouts import Place
from orchestrator.planner.memory import memory
from orchestrator.planner.saves import saves
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.speed import network, speed
from orchestrator.planner.tensors import saved_per_token
from orchestrator.planner.workload import Workload, workload
from orchestrator.profile import FabricProfile
from orchestrator.spec.train import CheckpointSpec, TrainSpec, rows_at_once

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
TINY: dict[str, Any] = {**LLAMA_8B, "hidden_size": 64, "vocab_size": 256, "num_hidden_layers": 2}
NDR = FabricProfile(kind="infiniband", rate="NDR400", hcas_per_node=8)


def gpu(name: str = "H100-80") -> Gpu:
    found = find(name)
    assert found
    return found


def work(**changes: Any) -> Workload:
    return Workload(**{"batch": 2, "seq_len": 4096, "shard": 8, **changes})


def train(config: dict[str, Any] | None = None, **changes: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "model": {"config": config or LLAMA_8B},
            "data": {"text_files": ["x"], "seq_len": 4096},
            "steps": 1000,
            "global_batch": 64,
            **changes,
        }
    )


def seen(nodes: int = 1, on: str | None = "H100-80", **changes: Any) -> Forecast:
    asked = train(**changes)
    place = Place(gpu=gpu(on) if on else None, per_node=8, fabric=NDR)
    return forecast(asked, asked.model.config or {}, place, nodes=nodes)


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
        ({"model_type": "nonesuch"}, "nonesuch; it knows llama"),
        (
            {"model_type": "phi"},
            "not know the shape of model_type phi; .* be trained all the same",
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


def test_a_checkpoint_of_adapters_is_small() -> None:
    """If the model came from a directory, which has the rest."""
    shape = shape_of(LLAMA_8B)
    adapted = work(rank=16, adapted=("q_proj", "v_proj"))
    adapters = 32 * 16 * ((4096 + 4096) + (4096 + 1024))
    small = saves(shape, replace(adapted, base_is_kept=True), CheckpointSpec(), step_s=None)
    assert small.checkpoint_bytes == 12 * adapters
    large = saves(shape, adapted, CheckpointSpec(), step_s=None)
    assert large.checkpoint_bytes == 12 * adapters + 4 * shape.parameters


@pytest.mark.parametrize(
    ("tokens", "words", "chunks", "rows"),
    [(4096, 32000, 1, 4096), (4096, 32000, 4, 1024), (10, 256, 3, 4), (4096, 32000, "auto", 4096),
     (16384, 128256, "auto", 2048)],
)  # fmt: skip
def test_rows_of_the_loss(tokens: int, words: int, chunks: int | str, rows: int) -> None:
    assert rows_at_once(tokens, words, chunks) == rows


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


def test_fp8_is_refused_where_the_gpu_has_none() -> None:
    assert seen(on="H200", fp8="rowwise", compile=True).options["fp8"] == "rowwise"
    with pytest.raises(SpecError, match="needs a Hopper GPU"):
        seen(on="A100-80", fp8="rowwise", compile=True)


def test_what_is_not_usual_is_shown() -> None:
    head = list(lines(seen(compile=True, cpu_offload=True, mesh={"replicate": 2, "shard": 4})))[1]
    assert "mesh: {replicate: 2, shard: 4}" in head
    assert "compile: true, cpu_offload: true" in head
    assert "fp8" not in head


def test_a_network_from_the_profile_or_from_its_rate() -> None:
    told = network(gpu(), FabricProfile(kind="infiniband", busbw_gbs=380), per_node=8)
    assert (told.between, told.known) == (380e9, True)
    assert network(gpu(), NDR, per_node=8).between == pytest.approx(337.5e9)
    slow = network(gpu(), FabricProfile(kind="ethernet"), per_node=8)
    assert (slow.between < 5e9, slow.known) == (True, False)


def test_a_slow_network_is_waited_for() -> None:
    shape = shape_of(LLAMA_8B)
    done = work(shard=16)
    fast, slow = (
        speed(shape, done, gpu(), network(gpu(), one, per_node=8), per_node=8)
        for one in (NDR, FabricProfile(kind="ethernet"))
    )
    assert slow.exposed_s > 10 * fast.exposed_s
    assert slow.compute_s == fast.compute_s


def test_more_nodes_are_not_needed() -> None:
    found = seen(config=TINY)
    assert (found.asked.fits, found.as_written) == (True, 1)
    assert found.answer.startswith("No: it fits on one node of 8 x H100-80")


LLAMA_70B: dict[str, Any] = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}


def of_70b(global_batch: int, *, nodes: int = 1, **changes: Any) -> Forecast:
    """On nodes of 4 x H100-80."""
    asked = train(LLAMA_70B, global_batch=global_batch, **changes)
    place = Place(gpu=gpu(), per_node=4, fabric=NDR)
    return forecast(asked, LLAMA_70B, place, nodes=nodes)


def test_more_nodes_are_needed() -> None:
    """70 billion parameters: 1,120 GB of states do not fit on 8 x 80 GB, whatever is done."""
    found = seen(config=LLAMA_70B)
    assert found.asked.fits is False
    assert found.smallest is not None
    assert found.answer.startswith(f"Yes: it takes {found.smallest.nodes} nodes at least")
    assert found.layouts == ()


def test_any_number_of_nodes_that_the_batch_allows_is_looked_at() -> None:
    found = of_70b(60, nodes=15, activation_checkpointing="full")
    assert (found.asked.fits, found.as_written) == (True, 15)
    assert found.answer == "Yes: as it is it takes 15 nodes of 4 x H100-80."
    assert of_70b(60).smallest == found.layouts[0]  # not the 5 that the batch allows too


def test_the_fewest_nodes_are_the_fewest() -> None:
    found = of_70b(1120)
    smallest = found.smallest
    assert smallest is not None
    assert found.nodes_min == smallest.nodes
    assert found.to_json()["nodes_min_as_written"] == found.as_written
    assert found.as_written != smallest.nodes
    assert smallest.nodes == 7
    lean = {"micro_batch": 1, "activation_checkpointing": "full"}
    assert not any(of_70b(1120, nodes=n, **lean).asked.fits for n in (1, 2, 4, 5))


def test_a_batch_that_cannot_be_shared_out_over_enough_nodes() -> None:
    found = of_70b(12)
    assert (found.nodes_min, found.smallest) == (None, None)
    assert "5 nodes of 4 x H100-80 would do" in found.answer
    assert "and global_batch 20; global_batch 12 can be shared out over 1 or 3" in found.answer
    assert of_70b(20).smallest == found.of_any_batch


def test_what_fits_nowhere() -> None:
    found = of_70b(64, data={"text_files": ["x"], "seq_len": 2_000_000})
    assert found.answer.startswith("It fits on no number of nodes up to 1024 of 4 x H100-80")


def test_layouts_share_out_the_batch_and_fit() -> None:
    found = seen(nodes=2, config={**LLAMA_8B, "num_hidden_layers": 16})
    assert found.layouts
    for one in found.layouts:
        assert one.fits
        assert not one.tight
        assert 64 % (one.train.micro_batch * 16) == 0
    rates = [one.speed.tokens_per_s_per_gpu for one in found.layouts if one.speed]
    assert rates[0] >= 0.98 * max(rates)


def test_without_a_gpu_bytes_are_told_and_nothing_else() -> None:
    found = seen(on=None)
    data = found.to_json()
    assert (data["fits"], data["nodes_min"], data["step_s"]) == (None, None, None)
    assert data["peak_bytes"] > 16 * 8e9 / 8
    assert "--gpu" in found.answer


def test_json_has_the_keys_that_stay() -> None:
    data = seen().to_json()
    stay = "fits nodes_min per_gpu_bytes peak_bytes checkpoint_bytes step_s tokens_per_s_per_gpu"
    assert list(data)[:7] == stay.split()
    assert sum(data["per_gpu_bytes"].values()) == pytest.approx(data["peak_bytes"], abs=16)
    assert data["checkpoint_bytes"] == 12 * 8_030_261_248


def test_text_is_short_and_says_all() -> None:
    text = list(lines(seen(nodes=2)))
    assert len(text) <= 30
    whole = "\n".join(text)
    for word in ("8,030,261,248", "activations", "tokens/s/GPU", "checkpoints", "More than one"):
        assert word in whole


def test_small_sizes_are_told_in_mib() -> None:
    config = {**TINY, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    text = "\n".join(lines(seen(config=config, micro_batch=1)))
    assert "0.00 GiB" not in text
    assert "0.0 GiB" not in text
    assert "MiB  parameters, fp32" in text
    assert "checkpoints: 1.3 MiB each, 3.9 MiB of disk" in text


def test_one_step_is_no_steps() -> None:
    found = seen(checkpoint={"max_interval_s": 1e-3})
    assert "1 step" in [line.rpartition(", ")[2] for line in lines(found)]
