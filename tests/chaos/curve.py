"""Training without arithmetic: a loss that depends on every bit of what happened before. Pure.

Each rank's state is a chain of hashes over its samples, the loss a hash over all states. So a step
done twice or left out, a sample too many, another rank's file or a flipped bit in a checkpoint
changes every loss from there on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

BATCH = 8
BLOCK = 32
BLOCKS = 2048  # 64 KiB a rank: a save that can be cut off, and that a full disk refuses
START = bytes(BLOCK)


def samples(step: int, *, rank: int, world_size: int) -> list[int]:
    """The positions in the data that a rank takes in a step (1, 2, ...)."""
    first = (step - 1) * BATCH
    return [first + i for i in range(BATCH) if i % world_size == rank]


def advance(state: bytes, positions: Sequence[int]) -> bytes:
    """A rank's state after one more step."""
    return hashlib.sha256(state + b"".join(n.to_bytes(8, "big") for n in positions)).digest()


def loss(states: Sequence[bytes]) -> str:
    """The loss of a step from the states of all ranks; a float in hexadecimal, bit for bit."""
    number = int.from_bytes(hashlib.sha256(b"".join(states)).digest()[:6], "big")
    return (number / 2**48).hex()


def losses(steps: int, *, world_size: int) -> list[str]:
    """The curve of a run that nobody disturbs."""
    states = [START] * world_size
    curve = []
    for step in range(1, steps + 1):
        taken = [samples(step, rank=rank, world_size=world_size) for rank in range(world_size)]
        states = [advance(state, mine) for state, mine in zip(states, taken, strict=True)]
        curve.append(loss(states))
    return curve


def pack(state: bytes) -> bytes:
    """A rank's file in a checkpoint: blocks whose sum modulo 2 is the state.

    So no bit of it can change without changing what is loaded.
    """
    blocks = [hashlib.sha256(state + i.to_bytes(4, "big")).digest() for i in range(BLOCKS - 1)]
    return b"".join([*blocks, _sum([state, *blocks])])


def unpack(data: bytes) -> bytes:
    """The state in a rank's file; another one if the file is not what was written."""
    return _sum([data[i : i + BLOCK] for i in range(0, len(data), BLOCK)])


def _sum(blocks: Sequence[bytes]) -> bytes:
    total = 0
    for block in blocks:
        total ^= int.from_bytes(block, "big")
    return total.to_bytes(BLOCK, "big")
