"""Samples for the steps to come, read by threads while the GPU computes.

Only a cache: what a step trains on is a function of its position, so nothing here belongs into a
checkpoint, and neither the number of threads nor how far they are ahead makes a difference.

Legend: B samples, L tokens of a sample.
"""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from orchestrator.errors import SpecError
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.corpus import Corpus
from orchestrator.trainer.mixture import Order
from orchestrator.trainer.packing import Samples, count_targets, take
from orchestrator.trainer.row import Ids
from orchestrator.trainer.sampler import rank_positions
from orchestrator.trainer.world import World


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch as tensors; see `Samples`."""

    inputs: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor | None = None

    def on(self, device: torch.device) -> "Batch":
        """Return it on ``device``; the copy of pinned memory does not wait."""

        def there(part: torch.Tensor) -> torch.Tensor:
            return part.to(device, non_blocking=True)

        positions = None if self.positions is None else there(self.positions)
        return Batch(there(self.inputs), there(self.targets), positions)


@dataclass(frozen=True, slots=True)
class Portion:
    """What a rank takes of a step.

    Attributes:
        divisor: How many tokens the step predicts, over all ranks.
        batches: The rank's micro-batches, in order.
    """

    divisor: Future[int]
    batches: tuple[Future[Batch], ...]


class Loader:
    """Gives this rank's part of each step."""

    def __init__(
        self, corpus: Corpus, order: Order, spec: TrainSpec, world: World, *, vocabulary: int
    ) -> None:
        self._corpus, self.order = corpus, order
        self._spec, self._world, self._vocabulary = spec, world, vocabulary
        self._documents = spec.data.packing == "documents"
        self._ahead: OrderedDict[int, Portion] = OrderedDict()
        self._threads = ThreadPoolExecutor(
            spec.data.readers, "fsdpq-data", initializer=_use_device, initargs=(world.device,)
        )

    def portion(self, position: int) -> Portion:
        """Return this rank's part of the step at ``position``; begin to read those after it."""
        spec = self._spec
        last = spec.steps * spec.global_batch
        wanted = range(position, last, spec.global_batch)[: spec.data.read_ahead + 1]
        for begin in wanted or (position,):
            if begin not in self._ahead:
                self._ahead[begin] = self._start(begin)
        found = self._ahead.pop(position)
        for begin in [one for one in self._ahead if one not in wanted]:
            del self._ahead[begin]  # of another position, before a checkpoint was loaded
        return found

    def _start(self, position: int) -> Portion:
        spec = self._spec
        batches = rank_positions(
            position,
            global_batch=spec.global_batch,
            micro_batch=spec.micro_batch,
            rank=self._world.rank,
            world_size=self._world.size,
        )
        divisor = self._threads.submit(self._count, position)
        return Portion(divisor, tuple(self._threads.submit(self._read, one) for one in batches))

    def _count(self, position: int) -> int:
        """Return how many tokens a step predicts: every rank works that out for itself."""
        spec = self._spec
        if not self._documents:
            return spec.global_batch * spec.data.seq_len
        positions = np.arange(position, position + spec.global_batch, dtype=np.int64)
        return max(count_targets(self._corpus, self.order.ids(positions), documents=True), 1)

    def _read(self, positions: Ids) -> Batch:
        samples = self.order.ids(positions)
        found = take(self._corpus, samples, documents=self._documents)
        check_tokens(found, self._corpus, samples, self._vocabulary)
        return batch_of(found, pin=self._world.device.type == "cuda")


def _use_device(device: torch.device) -> None:
    # Pinning on a thread that knows of no device would open a context on the first GPU.
    if device.type == "cuda":
        torch.cuda.set_device(device)


def batch_of(samples: Samples, *, pin: bool) -> Batch:
    """Return ``samples`` as tensors, from which a GPU can copy by itself if pinned."""

    def tensor(array: Ids) -> torch.Tensor:
        found = torch.from_numpy(np.ascontiguousarray(array))
        return found.pin_memory() if pin else found

    positions = None if samples.positions is None else tensor(samples.positions)
    return Batch(tensor(samples.inputs), tensor(samples.targets), positions)


def check_tokens(found: Samples, corpus: Corpus, samples: Ids, vocabulary: int) -> None:
    """Refuse tokens that the model does not know: on a GPU they would end the process.

    Raises:
        SpecError: Names the file. Shards say their largest token, so the file has been damaged.
    """
    most = np.maximum(found.inputs.max(axis=1), found.targets.max(axis=1))
    if (bad := np.flatnonzero(most >= vocabulary)).size:
        row = int(bad[0])
        raise SpecError(
            f"data: {corpus.where(int(samples[row]))}: the token {int(most[row])} is beyond the"
            f" model's vocabulary of {vocabulary}; is the file damaged? `fsdpq prepare --check`"
            " looks at all of it"
        )


def check_vocabulary(corpus: Corpus, vocabulary: int, *, key: str = "data") -> None:
    """Refuse a corpus with tokens that the model does not know.

    Raises:
        SpecError: It has some.
    """
    if corpus.largest < vocabulary:
        return
    if corpus.tokenizers == {"bytes"}:
        raise SpecError("model: vocab_size must be 256 or more, since tokens are bytes")
    raise SpecError(
        f"{key}: holds the token {corpus.largest}, which is beyond the model's vocabulary of"
        f" {vocabulary}; tokens and model are of different tokenizers"
    )
