"""Is the sharded model the one in the directory? Asked once, before the first step of a fine-tune.

A buffer with garbage, a weight under a wrong name or a rotation that a newer transformers computes
otherwise give no error: the model trains, slightly wrong. So rank 0 loads the model once more, by
`from_pretrained`, and buffers and logits of one short sequence are compared.
"""

import gc
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM, PreTrainedModel

from orchestrator.errors import SpecError
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.corpus import Corpus
from orchestrator.trainer.lora import is_adapter
from orchestrator.trainer.world import World

T = TypeVar("T")

# Tokens of the sequence, parameters of the largest model that one process is given whole, and how
# much of the memory that is there it may take.
_TOKENS = 128
_MOST_PARAMETERS = 12e9
_SHARE = 0.7
# Allowed root mean square of the difference, over that of the logits. Rounding of bf16 gives about
# 0.01; a rotation that is slightly wrong 0.05 and more.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.03}


def check_parity(model: PreTrainedModel, spec: TrainSpec, world: World, corpus: Corpus) -> str:
    """Compare ``model``, with its first weights, with `from_pretrained`. Collective.

    Returns:
        What was found, or why nothing was compared, for people.

    Raises:
        SpecError: They are not the same.
    """
    reason = _broadcast(_why_not(model, spec, world) if world.rank == 0 else "", world)
    if reason:
        return f"parity with from_pretrained is not checked: {reason}"
    tokens = torch.from_numpy(corpus.windows(np.zeros(1, np.int64))[:, :-1][:, :_TOKENS]).to(
        world.device
    )
    # Whether the data's tokens are words of the model is for others to say.
    tokens %= model.config.get_text_config().vocab_size
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}  # forward may change
    logits = _logits_of_shards(model, tokens)
    found = ("", "")
    if world.rank == 0:
        implementation = str(model.config._attn_implementation)
        found = _compare(logits, buffers, tokens, spec, world, implementation)
    problem, told = _broadcast(found, world)
    if problem:
        raise SpecError(
            f"model.path: the sharded model is not the one that from_pretrained loads from"
            f" {spec.model.path}: {problem}. Nothing was trained. Report this with the model's"
            " config.json and the versions of torch and transformers; model.parity_check: off"
            " trains all the same"
        )
    return str(told)


def _why_not(model: PreTrainedModel, spec: TrainSpec, world: World) -> str:
    if spec.model.parity_check == "off":
        return "model.parity_check is off"
    if spec.fp8 != "off":
        return "products in FP8 give other logits"
    parameters = sum(p.numel() for name, p in model.named_parameters() if not is_adapter(name))
    if parameters > _MOST_PARAMETERS:
        return (
            f"{parameters / 1e9:.1f} billion parameters are too many for one process; up to"
            f" {_MOST_PARAMETERS / 1e9:.0f} billion are checked"
        )
    needed = parameters * _dtype(spec).itemsize
    for place, free in _free(world).items():
        if needed > _SHARE * free:
            return (
                f"the whole model takes {needed / 2**30:.1f} GiB, and of {place} rank 0 has"
                f" {free / 2**30:.1f} GiB free"
            )
    return ""


def _dtype(spec: TrainSpec) -> torch.dtype:
    return torch.bfloat16 if spec.precision == "bf16" else torch.float32


def _free(world: World) -> dict[str, float]:
    """Return the memory that is free for rank 0, in bytes: the model passes through the host's."""
    free: dict[str, float] = {}
    text = Path("/proc/meminfo").read_text() if Path("/proc/meminfo").is_file() else ""
    if found := re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE):
        free["host memory"] = int(found[1]) * 1024.0
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
        free["GPU memory"] = float(torch.cuda.mem_get_info(world.device)[0])
    return free


@torch.no_grad()
def _logits_of_shards(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits, as every rank gets them. Leaves the model as it was."""
    model.eval()
    # Compiled for this one length, blocks would have to be compiled once more for training.
    with torch.compiler.set_stance("force_eager"):
        logits: torch.Tensor = model(input_ids=tokens).logits.float()
    model.train()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # what forward leaves whole, backward would have cut again
    return logits


def _compare(
    logits: torch.Tensor,
    buffers: Mapping[str, torch.Tensor],
    tokens: torch.Tensor,
    spec: TrainSpec,
    world: World,
    attention: str,
) -> tuple[str, str]:
    """Return what is wrong, and what to tell; rank 0 alone."""
    try:
        reference = _reference(spec, world, attention)
        problem = _other_buffers(buffers, reference)
        with torch.no_grad():
            wanted = reference(input_ids=tokens).logits.float()
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, ImportError) as raised:
        first = (str(raised).strip() or "no message").splitlines()[0]
        return f"from_pretrained fails: {type(raised).__name__}: {first}", ""
    finally:
        reference = None
        gc.collect()
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(world.device)
    spread = (wanted - wanted.mean()).square().mean().sqrt()
    # Of a head that is zero all logits are the same, and have no spread.
    equal = torch.equal(logits, wanted)
    off = 0.0 if equal else float((logits - wanted).square().mean().sqrt() / spread)
    if not off <= _TOLERANCE[_dtype(spec)]:  # not a number is none, either
        problem = (
            problem or f"the logits of {tokens.numel()} tokens differ by {off:.2g} of their spread"
        )
    told = (
        f"the sharded model has the logits of from_pretrained: they differ by {off:.1e} of their"
        f" spread over {tokens.numel()} tokens"
    )
    return problem, told


def _reference(spec: TrainSpec, world: World, attention: str) -> PreTrainedModel:
    reference: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        spec.model.path,
        dtype=_dtype(spec),
        attn_implementation=attention,
        local_files_only=True,
        trust_remote_code=False,
    )
    reference.config.use_cache = False
    return reference.to(world.device).eval()


def _other_buffers(buffers: Mapping[str, torch.Tensor], reference: PreTrainedModel) -> str:
    for name, buffer in reference.named_buffers():
        ours = buffers[name]
        if not torch.allclose(ours.to(buffer.device, buffer.dtype), buffer):
            return f"the buffer {name} holds other numbers"
    return ""


def _broadcast(value: T, world: World) -> T:
    box = [value]
    dist.broadcast_object_list(box, src=0, group=world.checkpoint_group)
    return box[0]
