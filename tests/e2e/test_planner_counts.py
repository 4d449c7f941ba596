"""The planner's sums against what torch does: parameters, saved tensors, everything that is held.

No GPU: what a CPU's kernels keep to themselves, and CUDA's own memory, are measured by
tests.gpu.planner.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.autograd.graph import saved_tensors_hooks  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from orchestrator.planner.families import FAMILIES, shape_of  # noqa: E402
from orchestrator.planner.moments import moments  # noqa: E402
from orchestrator.planner.tensors import saved_per_token  # noqa: E402
from orchestrator.planner.trained import block_parameters  # noqa: E402
from orchestrator.planner.workload import Workload, workload  # noqa: E402
from orchestrator.spec.train import TrainSpec  # noqa: E402
from orchestrator.trainer.anatomy import decoder_blocks  # noqa: E402
from tests.e2e.held import play  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.e2e,
    pytest.mark.skipif(torch.cuda.is_available(), reason="counts what a CPU does"),
]

SMALL: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 272,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "vocab_size": 300,
}


# Special tokens beyond a small vocabulary are refused, or warned of.
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def on_meta(config: dict[str, Any]) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 6, "head_dim": 16},
        {"num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": True},
        {"num_key_value_heads": 1, "tie_word_embeddings": False, "attention_bias": True,
         "mlp_bias": True},
        {},
    ],
)  # fmt: skip
def test_parameters_are_those_of_transformers(family: str, changes: dict[str, Any]) -> None:
    config = {"model_type": family, **SMALL, **TOKENS, **changes}
    if family in ("mixtral", "qwen3_moe"):
        config |= {"moe_intermediate_size": 80, "num_experts": 4, "num_local_experts": 4}
    elif family.startswith("gemma") and "num_key_value_heads" not in changes:
        config["num_key_value_heads"] = 2  # theirs do not divide these heads
    if family in ("qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe", "smollm3"):
        config.setdefault("num_key_value_heads", 3)
    model, shape = on_meta(config), shape_of(config)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    block = next(iter(decoder_blocks(model).values()))
    named = {name: parameter.numel() for name, parameter in block.named_parameters()}
    assert named == {name: size for name, _, size in block_parameters(shape)}
    assert sum(named.values()) == shape.block
    assert shape_of(AutoConfig.for_model(**config).to_dict()) == shape


def as_cuda_does(work: Workload) -> AbstractContextManager[None]:
    """Return where SDPA has no kernel, as CUDA has none; a CPU's has one for everything."""
    return nullcontext() if work.fused_attention else sdpa_kernel(SDPBackend.MATH)


def saved_bytes(config: dict[str, Any], work: Workload, *, compiled: bool = False) -> int:
    """Return what autograd saves in the last block, without its parameters."""
    dtype = torch.bfloat16 if work.width == 2 else torch.float32
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config), dtype=dtype, attn_implementation=work.attention
    ).train()
    model.config.use_cache = False
    parameters = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, Any] = {}
    block = list(decoder_blocks(model).values())[-1]
    if compiled:
        torch._dynamo.reset()  # families share functions, which may be compiled eight times only
        block.compile(fullgraph=True, dynamic=False)
    inner: Any = block._compiled_call_impl if compiled else block.forward

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters:
            kept[storage._cdata] = storage  # held, so that no other one gets its place
        return tensor

    def forward(*args: Any, **kwargs: Any) -> Any:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            return inner(*args, **kwargs)

    setattr(block, "_compiled_call_impl" if compiled else "forward", forward)
    halves = (torch.arange(work.seq_len) % (work.seq_len // 2)).expand(work.batch, -1)
    positions = {"position_ids": halves} if work.several_masks else {}
    with as_cuda_does(work):
        model(input_ids=torch.randint(0, 255, (work.batch, work.seq_len)), **positions)
    return sum(storage.nbytes() for storage in kept.values())


def shared_bytes(config: dict[str, Any], work: Workload) -> int:
    """Return the sines and cosines, which all blocks share."""
    each = work.batch if work.several_masks else 1
    width = 4 if config["model_type"] == "olmo2" else work.width
    return 2 * width * each * work.seq_len * shape_of(config).head_dim


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "family",
    ["llama", "mistral", "qwen2", "qwen3", "gemma", "granite", "olmo2", "phi3", "smollm3"],
)
def test_a_block_saves_what_is_written_down(family: str, attention: str, width: int) -> None:
    config = {"model_type": family, **SMALL, **TOKENS, "num_key_value_heads": 2, "head_dim": 24}
    work = Workload(batch=2, seq_len=40, width=width, attention=attention)
    counted = saved_bytes(config, work) - shared_bytes(config, work)
    said = work.tokens * sum(saved_per_token(shape_of(config), work).values())
    assert said == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize(
    ("family", "several", "changes"),
    [
        ("llama", True, {}),
        ("qwen3", True, {}),
        ("mistral", False, {"sliding_window": 16}),
        ("gemma3_text", False, {"sliding_window": 16, "layer_types": ["sliding_attention"] * 3}),
        ("granite", True, {}),
        ("olmo2", True, {}),
        ("phi3", True, {}),
        ("phi3", False, {"sliding_window": 16}),
        ("phi3", False, {"sliding_window": 16, "num_key_value_heads": 6}),
        (
            "smollm3",
            False,
            {"sliding_window": 16, "use_sliding_window": True, "no_rope_layer_interval": 3},
        ),
    ],
)
def test_a_block_whose_attention_has_a_mask_keeps_it(
    family: str, several: bool, changes: dict[str, Any]
) -> None:
    config = {
        "model_type": family, **SMALL, **TOKENS, "num_key_value_heads": 2, "head_dim": 24,
        **changes,
    }  # fmt: skip
    work = Workload(batch=2, seq_len=40, masked=1.0, several_masks=several)
    counted = saved_bytes(config, work) - shared_bytes(config, work)
    said = work.tokens * sum(saved_per_token(shape_of(config), work).values())
    assert said == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize(
    "family", ["mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "smollm3"]
)
def test_windows_are_those_of_transformers(family: str) -> None:
    config = {"model_type": family, "num_hidden_layers": 30, "use_sliding_window": True}
    if family in ("phi3", "smollm3"):
        config["sliding_window"] = 512
    made, shape = AutoConfig.for_model(**config), shape_of(config)
    kinds = getattr(made, "layer_types", None) or ["sliding_attention"] * 30
    assert shape.windowed == sum(kind == "sliding_attention" for kind in kinds)
    assert shape.window == made.sliding_window
    assert shape_of(made.to_dict()).windowed == shape.windowed


@pytest.mark.parametrize("family", ["llama", "granite", "olmo2", "phi3", "smollm3"])
def test_a_block_without_a_kernel_for_its_attention_saves_all_scores(family: str) -> None:
    config = {"model_type": family, **SMALL, **TOKENS, "num_key_value_heads": 2, "head_dim": 24}
    work = Workload(batch=2, seq_len=40, width=4, fused_attention=False)
    counted = saved_bytes(config, work) - shared_bytes(config, work)
    said = work.tokens * sum(saved_per_token(shape_of(config), work).values())
    assert said == pytest.approx(counted, rel=0.03)


# Dynamo and Inductor warn of what they do themselves.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("family", "attention"),
    [
        ("llama", "sdpa"), ("qwen3", "sdpa"), ("llama", "eager"), ("granite", "sdpa"),
        ("granite", "eager"), ("olmo2", "sdpa"), ("olmo2", "eager"), ("phi3", "sdpa"),
        ("phi3", "eager"), ("smollm3", "sdpa"), ("smollm3", "eager"),
    ],
)  # fmt: skip
def test_a_compiled_block_saves_what_is_written_down(family: str, attention: str) -> None:
    config = {"model_type": family, **SMALL, **TOKENS, "num_key_value_heads": 2, "head_dim": 24}
    work = Workload(batch=2, seq_len=40, compiled=True, attention=attention)
    counted = saved_bytes(config, work, compiled=True) - shared_bytes(config, work)
    said = work.tokens * sum(saved_per_token(shape_of(config), work).values())
    assert said == pytest.approx(counted, rel=0.03)


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 8000,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
TIED: dict[str, Any] = {
    **LLAMA, "model_type": "qwen3", "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
_AC = "activation_checkpointing"
NARROW: dict[str, Any] = {**LLAMA, "vocab_size": 300}
_SMALL_WORDS: dict[str, Any] = {**NARROW, **TOKENS}
GRANITE: dict[str, Any] = {
    **_SMALL_WORDS, "model_type": "granite", "residual_multiplier": 0.22, "logits_scaling": 8.0,
    "embedding_multiplier": 12.0,
}  # fmt: skip
OLMO: dict[str, Any] = {**_SMALL_WORDS, "model_type": "olmo2"}
PHI: dict[str, Any] = {**_SMALL_WORDS, "model_type": "phi3"}
SMOL: dict[str, Any] = {**_SMALL_WORDS, "model_type": "smollm3", "tie_word_embeddings": False}
# Configuration, ranks, tokens of a sequence, sequences, micro-batches, keys of `train`.
STEPS: list[tuple[dict[str, Any], int, int, int, int, dict[str, Any]]] = [
    (LLAMA, 2, 1024, 4, 1, {}),
    (LLAMA, 1, 1024, 2, 1, {}),
    (LLAMA, 8, 32, 1, 1, {}),
    (LLAMA, 2, 1024, 2, 2, {}),
    (LLAMA, 2, 1024, 2, 2, {"accumulate": "unsharded"}),
    (LLAMA, 4, 1024, 2, 2, {"mesh": {"replicate": 2, "shard": 2}}),
    (LLAMA, 2, 1024, 2, 1, {"precision": "fp32"}),
    ({**LLAMA, "vocab_size": 300}, 2, 2048, 2, 1, {"precision": "fp32"}),
    ({**LLAMA, "vocab_size": 300, "num_hidden_layers": 1}, 2, 2048, 2, 1, {"precision": "fp32"}),
    ({**LLAMA, "vocab_size": 300}, 2, 1024, 2, 1, {"precision": "fp32", _AC: "full"}),
    ({**LLAMA, "vocab_size": 300}, 2, 1024, 2, 1, {"precision": "fp32", _AC: "selective"}),
    ({**LLAMA, "vocab_size": 300}, 2, 1024, 2, 1,
     {"model": {"config": {**LLAMA, "vocab_size": 300}, "attention": "eager"}}),
    (LLAMA, 2, 1024, 4, 1, {"lora": {"rank": 16}}),
    ({**LLAMA, "vocab_size": 300}, 2, 1024, 4, 1, {"lora": {"rank": 16}}),
    (LLAMA, 2, 1024, 4, 1, {"lora": {"target_modules": ["q_proj", "v_proj"]}, _AC: "full"}),
    (TIED, 2, 1024, 2, 1, {"lora": {"rank": 64}}),
    (NARROW, 2, 1024, 4, 1, {"freeze": ["model.embed_tokens.*", "model.layers.[0-2].*"]}),
    (NARROW, 2, 1024, 4, 1, {"freeze": ["model.layers.[135].*"]}),
    (NARROW, 2, 1024, 4, 1, {"freeze": ["*.mlp.*", "*norm*"]}),
    (TIED, 2, 1024, 2, 1, {"freeze": ["model.embed_tokens.*"], _AC: "full"}),
    (LLAMA, 2, 1024, 2, 1, {"freeze": ["model.*"]}),
    (LLAMA, 2, 1024, 2, 1, {"reshard_after_forward": False}),
    (TIED, 2, 1024, 4, 1, {}),
    (TIED, 2, 32, 1, 1, {}),
    ({**TIED, "vocab_size": 300}, 2, 1024, 4, 1, {}),
    ({**LLAMA, "vocab_size": 300}, 2, 1024, 4, 1, {}),
    ({**LLAMA, "num_hidden_layers": 24}, 2, 64, 1, 1, {}),
    (LLAMA, 2, 1024, 4, 1, {_AC: "full"}),
    (LLAMA, 2, 1024, 4, 1, {_AC: "selective"}),
    ({**LLAMA, "vocab_size": 300}, 2, 1024, 4, 1, {_AC: "full"}),
    ({**LLAMA, "vocab_size": 300}, 2, 1024, 4, 1, {_AC: "selective"}),
    (LLAMA, 2, 1024, 4, 1, {"loss_chunks": 8}),
    (TIED, 2, 1024, 4, 1, {"loss_chunks": 8, _AC: "full"}),
    *[
        (config, 2, 1024, 4, 1, keys)
        for config in (GRANITE, OLMO, PHI, SMOL)
        for keys in ({}, {_AC: "full"}, {_AC: "selective"}, {_AC: "full", "lora": {"rank": 16}})
    ],
    ({**GRANITE, "vocab_size": 8000}, 2, 1024, 4, 1, {}),
    (OLMO, 2, 1024, 2, 1, {"precision": "fp32"}),
    (PHI, 2, 1024, 4, 1, {"lora": {"rank": 16}}),
    ({**PHI, "sliding_window": 256}, 2, 1024, 2, 1, {}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "ranks", "seq_len", "batch", "several", "keys"), STEPS)
def test_a_step_holds_what_is_played_through(
    config: dict[str, Any],
    ranks: int,
    seq_len: int,
    batch: int,
    several: int,
    keys: dict[str, Any],
) -> None:
    if missing := keys.keys() - TrainSpec.model_fields.keys():
        pytest.skip(f"this trainer has no {', '.join(missing)}")
    spec = TrainSpec.model_validate(
        {
            "model": {"config": config},
            "data": {"text_files": ["x"], "seq_len": seq_len},
            "steps": 10,
            "micro_batch": batch,
            "global_batch": batch * several * ranks,
            **keys,
        }
    )
    shape = shape_of(config)
    work = workload(spec, shape, world_size=ranks)
    with as_cuda_does(work):
        found = play(spec, world_size=ranks)
    # No processors: the sums that CUDA's attention needs are none of the tensors of a CPU.
    said = max(moments(shape, work, processors=1), key=lambda moment: moment.total)
    assert said.kinds["parameters"] + said.kinds["optimizer"] == pytest.approx(
        found.between, rel=0.01
    )
    assert -0.02 < said.total / found.most - 1 < 0.05, said.name
