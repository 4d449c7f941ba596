"""The loss on a validation set: the same samples each time, the same bits for any number of ranks.

A micro-batch is the same samples on whichever rank it falls. Each one's loss is put into its place
of a vector, the ranks add up their vectors, whose other places are zero, and the places are added
up in order: no sum depends on who did what. Neither generators nor the training's position are
touched.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist

from orchestrator.spec.train import EvalSpec
from orchestrator.trainer.attending import attend, reshard
from orchestrator.trainer.corpus import Corpus
from orchestrator.trainer.loader import Batch, batch_of, check_tokens, check_vocabulary
from orchestrator.trainer.metrics import finite
from orchestrator.trainer.mixture import Order, order_of
from orchestrator.trainer.packing import IGNORED, Samples, take
from orchestrator.trainer.training import Training

_AHEAD = 4


class Evaluator:
    """Measures the loss of a training's model on ``corpus``."""

    def __init__(self, training: Training, corpus: Corpus, spec: EvalSpec) -> None:
        self._training, self._corpus, self._spec = training, corpus, spec
        self._vocabulary = training.model.config.get_text_config().vocab_size
        check_vocabulary(corpus, self._vocabulary, key="eval")
        self._order: Order = order_of(corpus, seed=training.spec.seed)
        self._count = min(spec.batches * training.spec.global_batch, corpus.num_samples)
        self._threads = ThreadPoolExecutor(1, "fsdpq-eval", _use, (training.world.device,))

    @classmethod
    def of(cls, training: Training, corpus: Corpus | None) -> Self | None:
        """Return it; None where nothing is to be measured."""
        spec = training.spec.eval
        return None if corpus is None or spec is None else cls(training, corpus, spec)

    def due(self) -> bool:
        """Return whether the present step is one after which to measure."""
        state, last = self._training.state, self._training.spec.steps
        return state.step % self._spec.every == 0 or state.step == last or state.eval_owed

    def measure(self, *, stop: Callable[[], bool]) -> dict[str, Any] | None:
        """Return the loss for metrics.jsonl; None if ``stop``, asked on all ranks, said so.

        Collective. What is left out then is owed by the next attempt.
        """
        began, training = time.perf_counter(), self._training
        training.model.eval()
        try:
            found = self._sums(stop)
        finally:
            training.model.train()
            reshard(training.model)
        training.state.eval_owed = found is None
        if found is None:
            return None
        loss = found[0] / max(found[1], 1)
        return {
            "step": training.state.step,
            "loss": finite(loss),
            "perplexity": finite(math.exp(min(loss, 700.0))),
            "tokens": int(found[1]),
            "seconds": round(time.perf_counter() - began, 3),
        }

    @torch.no_grad()
    def _sums(self, stop: Callable[[], bool]) -> tuple[float, float] | None:
        """Return the sum of the losses of all tokens, and how many they are."""
        training, size = self._training, self._training.spec.micro_batch
        groups = -(-self._count // size)
        sums = torch.zeros(2, groups, dtype=torch.float64, device=training.world.device)
        for group, batch in self._batches(groups):
            if stop():
                return None
            count = int((batch.targets != IGNORED).sum())
            inputs = attend(batch.on(training.world.device), training.spec)
            loss = training.model(**inputs, divisor=1)
            if group < groups:
                sums[0, group], sums[1, group] = loss, count
        dist.all_reduce(sums)
        losses, counts = sums.tolist()
        return math.fsum(losses), math.fsum(counts)

    def _batches(self, groups: int) -> Iterator[tuple[int, Batch]]:
        """Yield this rank's micro-batches; as many on each rank, since forwards are collective."""
        world = self._training.world
        rounds = -(-groups // world.size)
        waiting: deque[tuple[int, Future[Batch]]] = deque()
        for number in range(rounds + _AHEAD):
            if number < rounds:
                group = number * world.size + world.rank
                waiting.append((group, self._threads.submit(self._read, group)))
            if number >= _AHEAD or number >= rounds:
                if not waiting:
                    return
                group, future = waiting.popleft()
                yield group, future.result()

    def _read(self, group: int) -> Batch:
        """Return a micro-batch; what is behind the last sample has no targets."""
        size = self._training.spec.micro_batch
        positions = np.arange(group * size, (group + 1) * size, dtype=np.int64)
        there = positions < self._count
        samples = self._order.ids(np.where(there, positions, 0))
        documents = self._training.spec.data.packing == "documents"
        found = take(self._corpus, samples, documents=documents)
        check_tokens(found, self._corpus, samples, self._vocabulary)
        targets = np.where(there[:, None], found.targets, IGNORED)
        return batch_of(
            Samples(found.inputs, targets, found.positions),
            pin=self._training.world.device.type == "cuda",
        )


def _use(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)


def describe(found: dict[str, Any]) -> str:
    """Return a line for people."""
    loss, perplexity = found["loss"], found["perplexity"]
    what = "is not finite" if loss is None else f"loss {loss:.4f}, perplexity {perplexity:.2f}"
    return (
        f"validation after step {found['step']}: {what}, {found['tokens']:,} tokens in"
        f" {found['seconds']:.1f} s"
    )
