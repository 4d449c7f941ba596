"""What a rank holds for good: its shards of parameters, gradients and optimizer. Pure."""

from dataclasses import dataclass

from orchestrator.planner.shape import ModelShape
from orchestrator.planner.trained import trained
from orchestrator.planner.workload import Workload


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that are gathered and scattered together.

    Attributes:
        whole: How many there are.
        trained: How many of them are trained.
    """

    whole: int
    trained: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The groups of a model as `fully_shard` cuts it, and the bytes of a rank's shards in fp32.

    Attributes:
        first: The embedding, unless it belongs to the ends.
        blocks: The decoder blocks.
        ends: The last norm and the head, and the embedding where it is the head's own matrix.
        trained: All parameters that are trained.
        parameters: Bytes of a rank's part of all parameters.
        gradients: Bytes of its part of the gradients.
        optimizer: Bytes of its part of AdamW's two moments.
    """

    first: Group
    blocks: tuple[Group, ...]
    ends: Group
    trained: int
    parameters: float
    gradients: float
    optimizer: float

    @property
    def block(self) -> Group:
        """One of the blocks, all of which are as large."""
        return self.blocks[0]

    @property
    def last(self) -> int:
        """How many parameters the last group has whose gradients are scattered."""
        sizes = (one.trained for one in (self.first, *self.blocks, self.ends))
        return next((size for size in sizes if size), 0)


def state_of(shape: ModelShape, work: Workload) -> State:
    """Return what each rank holds of the model and its optimizer."""
    lora = lora_parameters(shape, work)
    found = trained(shape, ("*",) if work.rank else work.freeze)
    first = Group(0, 0) if shape.tied else Group(shape.embedding, found.embedding)
    blocks = tuple(Group(shape.block + lora, size + lora) for size in found.blocks)
    head = found.embedding if shape.tied else found.head
    ends = Group(shape.hidden + shape.embedding, found.norm + head)
    groups = (first, *blocks, ends)
    whole = sum(group.whole for group in groups)
    trains = sum(group.trained for group in groups)
    return State(
        first=first,
        blocks=blocks,
        ends=ends,
        trained=trains,
        parameters=4.0 * whole / work.shard,
        gradients=4.0 * trains / work.shard,
        optimizer=8.0 * trains / work.shard,
    )


def lora_parameters(shape: ModelShape, work: Workload) -> int:
    """Return how many parameters LoRA adds to a block."""
    sizes = (shape.projections[name] for name in work.adapted)
    return sum(work.rank * (fan_in + fan_out) for fan_in, fan_out, _ in sizes)
