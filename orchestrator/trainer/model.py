"""A Hugging Face causal language model, sharded before it exists.

The model is built without memory (meta device), cut with `fully_shard`, and only then given memory
for its shards, so no rank ever holds all of it. Its parameters are fp32, whatever it computes in:
in bf16 most of the updates of a small learning rate round to nothing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from transformers import PreTrainedModel

from orchestrator.export.configuration import on_meta, read_config
from orchestrator.spec.train import ModelSpec, TrainSpec
from orchestrator.trainer.anatomy import decoder_blocks, ends
from orchestrator.trainer.compiling import compile_blocks
from orchestrator.trainer.freezing import freeze, frozen_names
from orchestrator.trainer.host_usage import forget_peak, peak_bytes, used_bytes
from orchestrator.trainer.lora import add_lora, is_adapter
from orchestrator.trainer.loss import attach_loss
from orchestrator.trainer.nonfinite import check_finite
from orchestrator.trainer.precision import to_float8
from orchestrator.trainer.prefetch import prefetch
from orchestrator.trainer.pretrained import Loaded, load_pretrained
from orchestrator.trainer.recompute import checkpoint_blocks
from orchestrator.trainer.weights import fill
from orchestrator.trainer.world import World

Say = Callable[[str], None]


def build_model(
    spec: TrainSpec, world: World, *, fresh: bool, say: Say = lambda text: None
) -> PreTrainedModel:
    """Return the sharded model on this rank's device.

    Args:
        spec: What to build.
        world: Where to.
        fresh: Also give it its first weights; not needed where a checkpoint is loaded next.
        say: Is told what people should know.

    Raises:
        SpecError: The model cannot be built from what the specification says.
    """
    model, template = build_on_meta(spec.model), build_on_meta(spec.model)
    freeze(model, spec)
    to_float8(model, spec)
    add_lora(model, spec)
    add_lora(template, spec)
    attach_loss(model, spec)
    checkpoint_blocks(model, spec)
    compile_blocks(model, spec)
    shard(model, spec, world)
    prefetch(model, spec)
    _give_memory(model, spec, world)
    _give_weights(model, template, spec, world, fresh=fresh, say=say)
    return model.train()


def _give_weights(
    model: PreTrainedModel,
    template: PreTrainedModel,
    spec: TrainSpec,
    world: World,
    *,
    fresh: bool,
    say: Say,
) -> None:
    """Fill buffers, and what no checkpoint will bring: first weights, and frozen ones of a path."""
    path = spec.model.path

    def draw(name: str) -> bool:
        return fresh and (path is None or is_adapter(name))

    fill(model, template, seed=spec.seed, draw=draw, device=world.device)
    if path is None:
        return
    frozen = frozen_names(model)
    if fresh or frozen:
        forget_peak()
        before = used_bytes()

        def wanted(name: str) -> bool:
            return fresh or name in frozen

        loaded = load_pretrained(model, Path(path), wanted=wanted)
        say(_describe_load(loaded, Path(path), world, before))
        check_finite(model, Path(path), world, wanted=wanted)


def _describe_load(loaded: Loaded, path: Path, world: World, before: int) -> str:
    """Return what loading took. Collective: what counts is the rank that took the most."""
    most = torch.tensor([loaded.seconds, peak_bytes(), before], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX, group=world.checkpoint_group)
    read = torch.tensor([loaded.nbytes], dtype=torch.float64)
    dist.all_reduce(read, group=world.checkpoint_group)
    seconds, peak, start = most.tolist()
    return (
        f"weights of {path}: {read.item() / 2**30:.2f} GiB read by {world.size} ranks in"
        f" {seconds:.1f} s; a process had {peak / 2**30:.2f} GiB of host memory at most, and"
        f" {start / 2**30:.2f} GiB before"
    )


def build_on_meta(spec: ModelSpec) -> PreTrainedModel:
    """Return the model without memory for its parameters.

    `sdpa` is the default attention, so where a family has none (Gemma 2) it is eager.

    Raises:
        SpecError: Hugging Face does not know the model.
    """
    config = read_config(spec)
    config.use_cache = False
    choices = ("sdpa", "eager") if spec.attention == "sdpa" else (spec.attention,)
    return on_meta(config, *choices, dtype=torch.float32)


def shard(model: PreTrainedModel, spec: TrainSpec, world: World) -> None:
    """Cut ``model`` over the mesh: each decoder block, then the ends, then what is left.

    The head is kept whole between forward and backward, as it is needed again at once. Where it
    shares its weight with the embedding, both must be in one group.
    """
    options: dict[str, Any] = {
        "mesh": world.mesh,
        "mp_policy": _policy(spec),
        "offload_policy": _offload(spec, world),
    }
    for block in decoder_blocks(model).values():
        fully_shard(block, reshard_after_forward=spec.reshard_after_forward, **options)
    fully_shard(ends(model), reshard_after_forward=False, **options)
    fully_shard(model, reshard_after_forward=spec.reshard_after_forward, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Sums, not means: the loss is already divided by the tokens of all ranks. Plain sums
            # are also what both gloo and NCCL can do.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _offload(spec: TrainSpec, world: World) -> OffloadPolicy:
    if not spec.cpu_offload:
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=world.device.type == "cuda")


def _give_memory(model: PreTrainedModel, spec: TrainSpec, world: World) -> None:
    """Give the shards of ``model`` memory, and its buffers; both are filled later.

    Buffers are used where the blocks compute, so they are on the GPU also where shards are not.
    """
    model.to_empty(device=torch.device("cpu") if spec.cpu_offload else world.device)
    if spec.cpu_offload:
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(world.device))


def _policy(spec: TrainSpec) -> MixedPrecisionPolicy:
    if spec.precision == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
