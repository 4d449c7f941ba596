"""What a rank holds for good: its shards of parameters, gradients and optimizer. Pure."""

from dataclasses import dataclass

from orchestrator.planner.shape import ModelShape
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
        block: One decoder block.
        ends: The last norm and the head, and the embedding where it is the head's own matrix.
        trained: All parameters that are trained.
        parameters: Bytes of a rank's part of all parameters.
        gradients: Bytes of its part of the gradients.
        optimizer: Bytes of its part of AdamW's two moments.
    """

    first: Group
    block: Group
    ends: Group
    trained: int
    parameters: float
    gradients: float
    optimizer: float


def state_of(shape: ModelShape, work: Workload) -> State:
    """Return what each rank holds of the model and its optimizer."""
    lora = lora_parameters(shape, work)

    def group(parameters: int, adapters: int = 0) -> Group:
        return Group(parameters + adapters, adapters if work.rank else parameters)

    first = group(0 if shape.tied else shape.embedding)
    block = group(shape.block, lora)
    ends = group(shape.hidden + shape.embedding)
    whole = first.whole + shape.layers * block.whole + ends.whole
    trained = first.trained + shape.layers * block.trained + ends.trained
    return State(
        first=first,
        block=block,
        ends=ends,
        trained=trained,
        parameters=4.0 * whole / work.shard,
        gradients=4.0 * trained / work.shard,
        optimizer=8.0 * trained / work.shard,
    )


def lora_parameters(shape: ModelShape, work: Workload) -> int:
    """Return how many parameters LoRA adds to a block."""
    sizes = (shape.projections[name] for name in work.adapted)
    return sum(work.rank * (fan_in + fan_out) for fan_in, fan_out, _ in sizes)
