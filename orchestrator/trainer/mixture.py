"""Several sources, each with its share of the samples; a function of the position alone.

Positions are cut into blocks of 65,536. In each block a source has the same number of places,
spread evenly and a little shaken, so that every global batch is close to the shares. How many
places a source had before a position is thus known without looking at those before, and each source
goes through its own epochs, in its own orders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import frexp, ldexp
from typing import Protocol

import numpy as np
import numpy.typing as npt

from orchestrator.errors import SpecError
from orchestrator.trainer.corpus import Corpus, Joined
from orchestrator.trainer.sampler import Ids, Sampler

BLOCK = 1 << 16


class Order(Protocol):
    """Which sample is at which position, for ever."""

    def ids(self, positions: Ids) -> Ids:
        """Return the sample at each position."""
        ...


def order_of(corpus: Corpus, *, seed: int) -> Order:
    """Return the order in which ``corpus`` is trained on.

    Raises:
        SpecError: A weight is too small beside the others.
    """
    if isinstance(corpus, Joined) and corpus.weights:
        return Mixture(corpus.sizes, places(corpus.weights), seed)
    return Sampler(corpus.num_samples, seed)


def places(weights: Sequence[float], *, block: int = BLOCK) -> tuple[int, ...]:
    """Return how many places of a block each source has: the nearest whole numbers that add up.

    >>> places([3, 1], block=10), places([1, 1, 1], block=10)
    ((8, 2), (4, 3, 3))

    Raises:
        SpecError: One would have none.
    """
    # A power of two leaves all digits as they are, and no sum gets too large.
    power = -frexp(max(weights))[1]
    shares = [ldexp(weight, power) for weight in weights]
    exact = [block * share / sum(shares) for share in shares]
    found = [int(share) for share in exact]
    rests = sorted(range(len(exact)), key=lambda one: (found[one] - exact[one], one))
    for one in rests[: block - sum(found)]:
        found[one] += 1
    if 0 in found:
        number = found.index(0)
        raise SpecError(
            f"data.sources.{number}.weight: {weights[number]} is less than one sample in"
            f" {block:,} beside the other weights; leave the source out, or raise its weight"
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Endless samples of sources with ``sizes`` samples, numbered through.

    Attributes:
        sizes: Samples of each source.
        places: How many of each block are of that source.
        seed: Settles the orders.
    """

    sizes: tuple[int, ...]
    places: tuple[int, ...]
    seed: int

    def ids(self, positions: Ids) -> Ids:
        """Return the sample at each position."""
        block = sum(self.places)
        numbers, slots = np.divmod(positions, block)
        found = np.empty_like(positions)
        for number in np.unique(numbers):
            here = numbers == number
            sources, ranks = _arrangement(self.places, self.seed, int(number))
            found[here] = self._samples(
                sources[slots[here]], ranks[slots[here]], number=int(number)
            )
        return found

    def _samples(self, sources: Ids, ranks: Ids, *, number: int) -> Ids:
        bases = np.cumsum([0, *self.sizes])
        found = np.empty_like(ranks)
        for source in np.unique(sources):
            of = sources == source
            sampler = Sampler(self.sizes[source], _seed_of(self.seed, int(source)))
            used = number * self.places[source] + ranks[of]
            found[of] = bases[source] + sampler.ids(used)
        return found


def _seed_of(seed: int, source: int) -> int:
    digest = blake2b(f"{seed} source {source}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@lru_cache(maxsize=8)
def _arrangement(counts: tuple[int, ...], seed: int, number: int) -> tuple[Ids, Ids]:
    """Return, for each place of block ``number``, its source and how often that came before.

    The k-th of n places of a source lies somewhere in the k-th n-th of the block. Whole numbers
    only, so that no library and no processor arranges it otherwise.
    """
    sources = np.repeat(np.arange(len(counts)), counts)
    ranks = np.concatenate([np.arange(count) for count in counts])
    shaken = (ranks.astype(np.uint64) << np.uint64(24)) + _noise(seed, number, len(sources))
    widths = np.repeat(np.array(counts, np.uint64), counts)
    order = np.argsort((shaken << np.uint64(16)) // widths, kind="stable")
    # A source's own places stay in their order, so the ranks do.
    return sources[order].astype(np.int64), ranks[order].astype(np.int64)


def _noise(seed: int, number: int, count: int) -> npt.NDArray[np.uint64]:
    """Return ``count`` numbers below 2**24."""
    text = blake2b(f"{seed} block {number}".encode(), digest_size=16).digest()
    words = bytearray()
    for part in range(-(-count // 16)):
        words += blake2b(part.to_bytes(8, "little"), key=text, digest_size=64).digest()
    return (np.frombuffer(bytes(words), "<u4")[:count] >> np.uint32(8)).astype(np.uint64)
