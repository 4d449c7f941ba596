"""Counts what the trainer's model holds in the course of a step, without a GPU and without memory.

Tensors are fake: they have sizes and no numbers, so models of any size can be played through on a
login node. Every storage counts from when it is made until nothing refers to it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import transformers.masking_utils
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AutoConfig, AutoModelForCausalLM

from orchestrator.spec.train import TrainSpec, mesh_shape
from orchestrator.trainer.model import shard
from orchestrator.trainer.training import build_optimizer
from orchestrator.trainer.world import World

_STEPS = 2  # AdamW makes its moments at the end of the first


class Held(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages, now and at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # comes again, as what it does to its shards
        made = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._see, made)
        return made

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._sizes:
            weakref.finalize(storage, self._drop, storage._cdata)
        self.resized(storage)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage whose size may have changed."""
        self.now += storage.nbytes() - self._sizes.get(storage._cdata, 0)
        self._sizes[storage._cdata] = storage.nbytes()
        self.most = max(self.most, self.now)

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)

    def knows(self, storage: torch.UntypedStorage) -> bool:
        """Return whether it is counted."""
        return storage._cdata in self._sizes


@contextmanager
def _counting() -> Iterator[Held]:
    held = Held()
    resize = torch.UntypedStorage.resize_

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        done = resize(self, size)
        if held.knows(self):
            held.resized(self)
        return done

    with ExitStack() as stack:
        # fully_shard frees and takes memory this way, past every operator.
        stack.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", resize_))
        # Both would look at numbers: whether there are several documents, and what a head does.
        masks = transformers.masking_utils
        for name, value in (("is_tracing", False), ("find_packed_sequence_indices", None)):
            stack.enter_context(mock.patch.object(masks, name, return_value=value))
        stack.enter_context(mock.patch.object(torch, "allclose", return_value=True))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield stack.enter_context(held)


@dataclass(frozen=True)
class Played:
    """What was held: parameters and moments between steps, and everything at most, in bytes."""

    between: int
    most: int


def play(spec: TrainSpec, *, world_size: int) -> Played:
    """Return what rank 0 of ``world_size`` holds in a step of ``spec``."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        world = _world(spec, world_size)
        with _counting() as held:
            return _play(spec, world, held)
    finally:
        dist.destroy_process_group()


def _play(spec: TrainSpec, world: World, held: Held) -> Played:
    model = _model(spec, world)
    optimizer = build_optimizer(model, spec)
    gc.collect()
    for _ in range(_STEPS):
        between = held.most = held.now
        each = spec.global_batch // (spec.micro_batch * world.size)
        for number in range(1, each + 1):
            model.set_is_last_backward(number == each)
            model.set_requires_all_reduce(number == each)
            if spec.accumulate == "unsharded":
                model.set_requires_gradient_sync(number == each)
            _loss(model, spec).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return Played(between, held.most)


def _world(spec: TrainSpec, world_size: int) -> World:
    replicate, shards = mesh_shape(spec, world_size)
    mesh = (
        init_device_mesh("cpu", (shards,), mesh_dim_names=("shard",))
        if replicate == 1
        else init_device_mesh("cpu", (replicate, shards), mesh_dim_names=("replicate", "shard"))
    )
    group: Any = None  # checkpoints use it, and there are none
    return World(0, world_size, torch.device("cpu"), mesh, group)


def _model(spec: TrainSpec, world: World) -> Any:
    config = AutoConfig.for_model(**(spec.model.config or {}))
    config.use_cache = False
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=spec.model.attention
    ).train()
    if spec.lora or spec.freeze:
        import_module("orchestrator.trainer.freezing").freeze(model, spec)
    if spec.lora:
        import_module("orchestrator.trainer.lora").add_lora(model, spec)
        _give_memory(model)
    if hasattr(spec, "loss_chunks"):
        import_module("orchestrator.trainer.loss").attach_loss(model, spec)
        import_module("orchestrator.trainer.recompute").checkpoint_blocks(model, spec)
    shard(model, spec, world)
    return model


def _give_memory(model: Any) -> None:
    """Give adapters memory; the trainer does so at the end, for all of the model."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.device.type == "meta":
                setattr(module, name, torch.nn.Parameter(torch.empty_like(parameter, device="cpu")))


def _loss(model: Any, spec: TrainSpec) -> Any:
    tokens = torch.zeros(spec.micro_batch, spec.data.seq_len + 1, dtype=torch.int64)
    if hasattr(spec, "loss_chunks"):
        return model(input_ids=tokens[:, :-1], targets=tokens[:, 1:], divisor=1)
    # As `training._loss_sum` does: the logits are let go of when it returns.
    logits = model(input_ids=tokens[:, :-1]).logits
    return functional.cross_entropy(
        logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum"
    )
