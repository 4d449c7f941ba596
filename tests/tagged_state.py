"""A state that tells of itself when it is torn: after step s every number in it is s.

It is changed where a real one is, by the optimizer's step, and a step is much shorter than a save,
so that saves meet as many changes as there can be.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

from orchestrator.trainer.state import AppState
from orchestrator.trainer.world import World

LAYERS = 3


class Model(nn.Module):
    """Layers of `numbers` each, an odd shape that does not divide, and a buffer that counts."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, max(1, numbers // 64)) for _ in range(LAYERS))
        self.odd = nn.Parameter(torch.zeros(7, 3))
        self.register_buffer("count", torch.zeros(1))


class Counting(torch.optim.Optimizer):
    """Sets every parameter and every state to the number of its steps."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Count one up."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(step=torch.zeros(()), moment=torch.zeros_like(parameter))
                state["step"] += 1
                for tensor in (parameter, state["moment"]):
                    _local(tensor).fill_(float(state["step"]))


def make_state(numbers: int, *, device: torch.device) -> AppState:
    """Return a state at step 0, sharded over all ranks. Collective."""
    world = World(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        device=device,
        mesh=init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("shard",)),
        checkpoint_group=dist.new_group(backend="gloo"),
    )
    model = Model(numbers).to(device)
    for layer in model.layers:
        fully_shard(layer, mesh=world.mesh)
    fully_shard(model, mesh=world.mesh)
    optimizer = Counting(model.parameters())
    optimizer.step()
    state = AppState(
        model=model,
        optimizer=optimizer,
        scheduler=LambdaLR(optimizer, lambda _: 1.0),
        world=world,
        seed=0,
        fingerprint="",
    )
    rewind(state)
    return state


@torch.no_grad()
def rewind(state: AppState) -> None:
    """Set every number to 0."""
    for entry in state.optimizer.state.values():
        for tensor in entry.values():
            _local(tensor).zero_()
    for tensor in (*state.model.parameters(), *state.model.buffers()):
        _local(tensor).zero_()


def advance(state: AppState) -> None:
    """Take a step: what a forward changes first, then what the optimizer does."""
    for buffer in state.model.buffers():
        buffer += 1
    state.optimizer.step()
    state.scheduler.step()
    state.step += 1
    state.position += 1


def check(path: Path) -> int:
    """Return the step that all numbers of a checkpoint agree on; reads it with DCP alone.

    Raises:
        AssertionError: It is torn.
    """
    with warnings.catch_warnings():  # it says that it reads in a single process
        warnings.simplefilter("ignore")
        return _check(path)


def _check(path: Path) -> int:
    step = int(_load_state_dict_from_keys({"app.step"}, checkpoint_id=path)["app"]["step"])
    metadata = FileSystemReader(path).read_metadata()
    names = set(metadata.state_dict_metadata)
    tensors = {name for name in names if name.startswith(("app.model", "app.optim.state"))}
    assert len(tensors) == 3 * (2 * LAYERS + 1) + 1, sorted(names)
    loaded = _load_state_dict_from_keys(tensors | {"app.data.position"}, checkpoint_id=path)["app"]
    found = dict(_walk("", {"model": loaded["model"], "optim": loaded["optim"]}))
    found["position"] = torch.tensor(loaded["data"]["position"])
    for name, tensor in found.items():
        numbers = sorted(set(tensor.float().flatten().tolist()))
        assert numbers == [float(step)], f"{path.name}: {name} holds {numbers[:4]}"
    return step


def _walk(name: str, value: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(name, value)]
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _walk(f"{name}.{key}", item)]
    return []


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
