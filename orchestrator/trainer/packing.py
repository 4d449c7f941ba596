"""Samples as a model takes them: with positions that begin anew in each document, if asked for.

Attention of Hugging Face's models derives its mask from such positions where it is given no other:
a token then sees its own document alone. `leaks` proves it for the model at hand.

Legend: B samples, L tokens of a sample.
"""

from dataclasses import dataclass

import numpy as np

from orchestrator.trainer.corpus import Corpus
from orchestrator.trainer.row import Bools, Ids

IGNORED = -100  # what cross_entropy leaves out by default


@dataclass(frozen=True, slots=True)
class Samples:
    """A micro-batch, each part of shape (B, L).

    Attributes:
        inputs: Tokens.
        targets: What each predicts; IGNORED where that is nothing.
        positions: Within its document; None where documents do not count.
    """

    inputs: Ids
    targets: Ids
    positions: Ids | None = None


def take(corpus: Corpus, samples: Ids, *, documents: bool) -> Samples:
    """Return ``samples``; with ``documents`` each of them stands for itself."""
    tokens = corpus.windows(samples)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if not documents:
        return Samples(inputs, targets)
    begins = corpus.beginnings(samples)
    # The last token of a document cannot know how the next one begins.
    return Samples(inputs, np.where(begins[:, 1:], IGNORED, targets), positions_of(begins[:, :-1]))


def positions_of(begins: Bools) -> Ids:
    """Return each token's position in its document.

    >>> positions_of(np.array([[True, False, True, False, False]])).tolist()
    [[0, 1, 0, 1, 2]]
    """
    index = np.arange(begins.shape[1], dtype=np.int64)
    return index - np.maximum.accumulate(np.where(begins, index, 0), axis=1)


def document_ids(positions: Ids) -> Ids:
    """Return which document of its sample each token is in, counted from 0.

    >>> document_ids(np.array([[0, 1, 0, 1, 2]])).tolist()
    [[0, 0, 1, 1, 1]]
    """
    return np.cumsum(positions == 0, axis=1) - 1


def count_targets(corpus: Corpus, samples: Ids, *, documents: bool) -> int:
    """Return how many tokens of ``samples`` are predicted."""
    whole = len(samples) * corpus.seq_len
    return whole - int(corpus.beginnings(samples)[:, 1:].sum()) if documents else whole
