"""Sizes in bytes that the moments of a step share. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from orchestrator.planner.activations import BlockBytes, block_bytes
from orchestrator.planner.shape import ModelShape
from orchestrator.planner.state import Group, State, state_of
from orchestrator.planner.trained import Trained, trained
from orchestrator.planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes in bytes that the moments share.

    Attributes:
        first: The first block that gradients come to.
        blocks: The activations of each block.
        kept: What the blocks up to each one keep for their backward.
        mask: What attention is given beside its inputs, as long as somebody holds it.
    """

    shape: ModelShape
    work: Workload
    state: State
    trained: Trained
    first: int
    blocks: tuple[BlockBytes, ...]
    kept: tuple[float, ...]
    hidden: float
    last_norm: float
    mask: float

    def whole(self, group: Group) -> float:
        """Return the bytes of a group's parameters when they are gathered."""
        return float(self.work.width * group.whole)

    def own(self, group: Group) -> float:
        """Return the bytes of a group's gradients before they are scattered."""
        return float(self.work.width * group.trained)

    def buffer(self, group: Group) -> float:
        """Return the buffer that a group is gathered into; a single rank needs none."""
        return self.whole(group) if self.work.shard > 1 else 0.0

    def copies(self, group: Group) -> float:
        """Return a rank's part of a group as it comes from host memory: in fp32, and cast."""
        if not self.work.offload:
            return 0.0
        cast = self.work.width if self.work.width < 4 else 0
        return (4.0 + cast) * group.whole / self.work.shard

    @property
    def saved(self) -> float:
        """Return what all blocks and the last norm have saved by the end of the forward."""
        return self.kept[-1] + self.held_mask + self.last_norm

    @property
    def held_mask(self) -> float:
        """Return the mask, if it is kept for the backward."""
        held = self.work.compiled or self.work.checkpointing != "off"
        return self.mask if held else 0.0

    @property
    def head(self) -> int:
        """Return how many parameters of the head train, be it the embedding or not."""
        if self.work.rank:
            return 0
        return self.trained.embedding if self.shape.tied else self.trained.head

    @property
    def open_blocks(self) -> float:
        """Return the gathered blocks between forward and backward; none if they are resharded."""
        return 0.0 if self.work.reshard else self.shape.layers * self.whole(self.state.block)


def sizes_of(shape: ModelShape, work: Workload, processors: int) -> Sizes:
    """Return the sizes that the moments of a step share; ``processors`` are those of the GPU."""
    scaled = 4 if shape.fp32_norm else work.width
    found = trained(shape, work.freeze)
    first = found.first()
    blocks = tuple(_blocks(shape, work, found, first, processors))
    masks = work.batch if work.several_masks else 1
    return Sizes(
        shape=shape,
        work=work,
        state=state_of(shape, work),
        trained=found,
        first=first,
        blocks=blocks,
        kept=tuple(accumulate(block.kept for block in blocks)),
        hidden=float(work.width * work.tokens * shape.hidden),
        # Of the last norm: its input in fp32, that scaled, and what goes into the head.
        last_norm=work.tokens * shape.hidden * (4.0 + scaled + work.width),
        mask=float(masks * work.seq_len**2) if work.masked else 0.0,
    )


def _blocks(
    shape: ModelShape, work: Workload, found: Trained, first: int, processors: int
) -> Iterator[BlockBytes]:
    """Yield the activations of each block; those below what trains keep none."""
    kinds: dict[frozenset[str], BlockBytes] = {}
    for index, idle in enumerate(found.idle):
        if idle not in kinds:
            kinds[idle] = block_bytes(shape, replace(work, idle=idle), processors=processors)
        one = kinds[idle]
        yield one if index >= first else replace(one, kept=0.0, again=0.0, mlp=0.0)
