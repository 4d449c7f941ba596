"""The state of the random generators, one for each rank, in a form that any number of ranks loads.

Keys such as `rng.rank3` would make a checkpoint unloadable with more ranks. So the states of all
ranks travel as one text, and are put back only where the number of ranks is the same.
"""

import base64
import json
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from orchestrator.trainer.world import World


def seed_all(*, seed: int, step: int, rank: int) -> None:
    """Seed all generators of this rank, differently for each step and rank."""
    sequence = np.random.SeedSequence([seed, step, rank])
    words = [int(word) for word in sequence.generate_state(3)]
    torch.manual_seed(words[0])  # the GPU's too
    np.random.seed(words[1])
    random.seed(words[2])


def gather_states(world: World) -> str:
    """Return the states of all ranks as JSON. Collective."""
    states: list[Any] = [None] * world.size
    dist.all_gather_object(states, _state(world.device), group=world.checkpoint_group)
    return json.dumps(states)


def restore_states(text: str, world: World, *, seed: int, step: int) -> None:
    """Put this rank's state back; seed anew where the number of ranks has changed."""
    states = json.loads(text)
    if len(states) != world.size:
        seed_all(seed=seed, step=step, rank=world.rank)
        return
    _apply(states[world.rank], world.device)


def _state(device: torch.device) -> dict[str, Any]:
    name, keys, *rest = np.random.get_state(legacy=True)
    state = {
        "torch": _encode(torch.get_rng_state()),
        "numpy": [name, [int(key) for key in keys], *rest],
        "python": random.getstate(),
    }
    if device.type == "cuda":
        state["cuda"] = _encode(torch.cuda.get_rng_state(device))
    return state


def _apply(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(_decode(state["torch"]))
    np.random.set_state(tuple(state["numpy"]))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_decode(state["cuda"]), device)


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
