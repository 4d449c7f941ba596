"""Which samples a step trains on: a function of the seed and of how many were used before.

The order of an epoch is a permutation that is computed, not stored: a keyed Feistel network over
the next power of four, walked until it falls below the number of samples. It needs no memory, any
position can be asked for, and it does not change with the version of a library's generator, so a
resume under another numpy still uses every sample exactly once.

Ranks matter only for who takes which part of a step: with the same global batch the set of samples
of each step is the same for any number of ranks.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Sampler:
    """Endless epochs over ``num_samples`` samples, each in an order of its own."""

    num_samples: int
    seed: int

    def ids(self, positions: Ids) -> Ids:
        """Return the sample at each position; position 0 is the first sample of epoch 0."""
        epochs, indices = np.divmod(positions, self.num_samples)
        samples = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            samples[chosen] = permute(
                indices[chosen], size=self.num_samples, seed=self.seed, epoch=int(epoch)
            )
        return samples


def rank_positions(
    start: int, *, global_batch: int, micro_batch: int, rank: int, world_size: int
) -> list[Ids]:
    """Return the positions that ``rank`` takes of the step that begins at ``start``.

    One array of ``micro_batch`` positions for each micro-batch, in order.
    """
    at_once = micro_batch * world_size
    first = start + rank * micro_batch
    return [
        np.arange(first + offset, first + offset + micro_batch, dtype=np.int64)
        for offset in range(0, global_batch, at_once)
    ]


def permute(indices: Ids, *, size: int, seed: int, epoch: int) -> Ids:
    """Return where a permutation of 0..size-1 sends each of ``indices``."""
    keys = _keys(seed, epoch)
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    values = _feistel(indices.astype(np.uint64), keys, half_bits)
    # The network permutes up to four times as many numbers; walking on from one that is too large
    # until one fits is again a permutation.
    while (outside := values >= np.uint64(size)).any():
        values[outside] = _feistel(values[outside], keys, half_bits)
    return values.astype(np.int64)


def _keys(seed: int, epoch: int) -> _Words:
    digest = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def _feistel(values: _Words, keys: _Words, half_bits: int) -> _Words:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(words: _Words) -> _Words:
    """Return well-mixed bits. Source: the finaliser of SplitMix64 (Steele et al., OOPSLA 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
