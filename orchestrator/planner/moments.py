"""The moments of a step at which a GPU may hold most, and what it holds then. Pure.

A step of the trainer is played through: what `fully_shard` gathers and frees (torch 2.11 to 2.13,
_fsdp_param_group.py and _fsdp_collectives.py), what autograd saves and what the loss needs. A group
of parameters is gathered into one buffer and copied out of it; the next one's buffer is there
before. Gradients are copied into a buffer in fp32, which stays until the next group's are.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.planner.shape import ModelShape
from orchestrator.planner.sizes import Sizes, sizes_of
from orchestrator.planner.state import State
from orchestrator.planner.trained import block_parameters
from orchestrator.planner.workload import Workload

# Kinds of bytes, in the order in which they are shown.
KINDS = (
    "parameters", "optimizer", "gradients", "unsharded", "activations", "logits", "communication",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What is held at one moment.

    Attributes:
        name: What happens.
        kinds: Bytes by kind.
        gathered: Those of them that are in the pool of the stream that gathers.
        scattered: Those that are in the pool of the stream that scatters gradients.
        unused: Bytes of the default stream's pool, beside `kinds`, that nothing fits into.
    """

    name: str
    kinds: dict[str, float]
    gathered: float = 0.0
    scattered: float = 0.0
    unused: float = 0.0

    @property
    def total(self) -> float:
        """All bytes."""
        return sum(self.kinds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Now:
    """What a moment holds beside the shards, in bytes, but for `done`.

    Attributes:
        done: Parameters whose gradients of this micro-batch have been scattered.
        whole: Gathered parameters.
        buffer: What parameters are gathered into.
        sending: The fp32 copy of gradients that are being scattered.
        received: This rank's part of those.
        own: Gradients before they are scattered.
        unused: What lies between, too small for what is asked for.
    """

    name: str
    done: float = 0.0
    whole: float = 0.0
    buffer: float = 0.0
    sending: float = 0.0
    received: float = 0.0
    own: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    unused: float = 0.0


def moments(shape: ModelShape, work: Workload, *, processors: int) -> Iterator[Moment]:
    """Yield the moments of a step at which a GPU may hold most.

    Args:
        shape: The model.
        work: What a rank does.
        processors: Streaming multiprocessors of the GPU.
    """
    sizes = sizes_of(shape, work, processors)
    for now in (*_forward(sizes), *_gathering(sizes), *_loss(sizes), *_backward(sizes)):
        yield _moment(now, sizes)


def _moment(now: _Now, sizes: Sizes) -> Moment:
    work, state = sizes.work, sizes.state
    sent, sums, sending = 4.0 * now.done / work.shard, 0.0, now.sending
    if work.micro_batches > 1:  # the last one counts, with the gradients of those before it
        if work.unsharded_sums:
            sums = 4.0 * (state.trained - now.done)
        else:
            sent = state.gradients
            # Only the last backward of a step lets go of the last buffer it scattered from.
            sending = sending or 4.0 * state.last
    there = 0.0 if work.offload else 1.0
    scattered = there * sent + now.received
    return Moment(
        name=now.name,
        kinds={
            "parameters": there * state.parameters,
            "optimizer": there * state.optimizer,
            "gradients": scattered + sums + now.own,
            "unsharded": now.whole,
            "activations": now.activations,
            "logits": now.logits,
            "communication": now.buffer + sending,
        },
        gathered=now.buffer,
        scattered=scattered,
        unused=now.unused,
    )


def _forward(sizes: Sizes) -> Iterator[_Now]:
    shape, work, state, block = sizes.shape, sizes.work, sizes.state, sizes.blocks[-1]
    yield _Now(
        name="forward of the last block",
        whole=sizes.whole(state.ends if shape.tied else state.first)
        + (sizes.open_blocks or sizes.whole(state.block)),
        buffer=max(2, work.prefetch + 1) * sizes.buffer(state.block) + sizes.copies(state.block),
        activations=sizes.kept[-1] + block.again + block.forward + sizes.mask,
    )


def _gathering(sizes: Sizes) -> Iterator[_Now]:
    """Yield the gathering of the largest group, while the buffer of a block is still there."""
    shape, state = sizes.shape, sizes.state
    buffer = sizes.buffer(state.block) + sizes.buffer(state.ends) + sizes.copies(state.ends)
    if shape.tied:  # the ends come first, and a block then
        yield _Now(
            name="gathering of the first block", whole=sizes.whole(state.ends), buffer=buffer
        )
    else:
        yield _Now(
            name="gathering of the head",
            whole=sizes.whole(state.first) + (sizes.open_blocks or sizes.whole(state.block)),
            buffer=buffer,
            activations=sizes.kept[-1] + sizes.held_mask + sizes.hidden,
        )


def _loss(sizes: Sizes) -> Iterator[_Now]:
    """Yield the head and the loss, which is a part of the model's forward."""
    shape, work, state = sizes.shape, sizes.work, sizes.state
    whole = sizes.whole(state.first) + sizes.whole(state.ends) + sizes.open_blocks
    # The head's buffer is let go of at the end of the forward. A tied one was, long before.
    buffer = sizes.buffer(state.block if shape.tied else state.ends)
    head = sizes.head
    if work.in_parts:
        yield _Now(
            name="loss, in parts",
            whole=whole,
            buffer=buffer,
            own=4.0 * head,
            activations=sizes.saved + sizes.hidden,
            logits=_part_of_loss(work, float(work.loss_rows * shape.vocab), float(head)),
        )
    else:
        yield from _whole_loss(sizes, whole=whole, buffer=buffer)
    yield _Now(
        name="backward of the head",
        whole=whole,
        buffer=sizes.buffer(state.block),
        own=(4.0 if work.in_parts else 0.0) * head + work.width * head,
        activations=sizes.saved + sizes.hidden,
        logits=0.0 if work.in_parts else float(work.width * work.tokens * shape.vocab),
    )


def _part_of_loss(work: Workload, words: float, head: float) -> float:
    """Return the bytes of ``words`` logits while their gradient is taken.

    The logits, their log-softmax in fp32, and the gradients of both. Where it is compiled nothing
    of it exists in fp32, and the head's gradient of one part is more, before it is added up.
    """
    if work.compiled:
        return 2.0 * work.width * words + work.width * head
    return max((12.0 + work.width) * words, 2.0 * work.width * words + work.width * head)


def _whole_loss(sizes: Sizes, *, whole: float, buffer: float) -> Iterator[_Now]:
    work = sizes.work
    words = float(work.tokens * sizes.shape.vocab)
    copies = 8.0 + (work.width if work.width == 2 else 0)  # the logits, in fp32, and log-softmax
    yield _Now(
        name="loss",
        whole=whole,
        buffer=buffer,
        activations=sizes.saved,
        logits=words * (2.0 * work.width if work.fused_loss else copies),
    )
    yield _Now(
        name="backward of the loss",
        whole=whole,
        activations=sizes.saved,
        # Log-softmax, its gradient and that of the logits.
        logits=words * (2.0 * work.width if work.fused_loss else 12.0),
        # Into the place of the logits and of those in fp32, side by side, one of the two gradients
        # fits, and the rest of it stays empty.
        unused=0.0 if work.fused_loss or work.width == 4 else work.width * words,
    )


def _backward(sizes: Sizes) -> Iterator[_Now]:
    shape, work, state = sizes.shape, sizes.work, sizes.state
    first = sizes.whole(state.first)
    yield _Now(
        name="backward of the last norm",
        whole=first + sizes.whole(state.ends) + sizes.open_blocks,
        buffer=sizes.buffer(state.block),
        own=sizes.own(state.ends),
        # Four numbers in fp32 for each that goes in.
        activations=sizes.saved + 16.0 * work.tokens * shape.hidden,
    )
    if not shape.tied:
        yield _Now(
            name="gradient of the head",
            whole=first + sizes.open_blocks,
            buffer=sizes.buffer(state.block),
            sending=4.0 * state.ends.trained,
            received=4.0 * state.ends.trained / work.shard,
            own=sizes.own(state.ends),
            activations=sizes.saved - sizes.last_norm + sizes.hidden,
        )
    # What is needed falls or rises evenly from the last but one to the first.
    even = {sizes.first, max(shape.layers - 2, 0), shape.layers - 1}
    for index in sorted(set(range(shape.layers)) if work.freeze else even, reverse=True):
        if index >= sizes.first:
            yield from _block(sizes, index)
    if shape.tied:  # the embedding's gradient, the head's, and their sum
        yield _Now(
            name="sum of the gradients of embedding and head",
            done=state.trained - state.ends.trained,
            whole=sizes.whole(state.ends),
            sending=4.0 * _behind(state, -1, tied=True),
            own=3.0 * sizes.own(state.ends),
            activations=sizes.hidden,
        )
    last = state.ends if shape.tied else state.first
    if last.trained:
        yield _Now(
            name="gradient of the embedding",
            done=state.trained - last.trained,
            sending=4.0 * last.trained,
            received=4.0 * last.trained / work.shard,
            own=sizes.own(last),
            activations=sizes.hidden,
        )


def _behind(state: State, index: int, *, tied: bool) -> int:
    """Return how many parameters the last group had that was scattered before block ``index``.

    Groups that do not train are passed over: nothing lets go of the buffer before them.
    """
    above = (*state.blocks, *(() if tied else (state.ends,)))[index + 1 :]
    return next((one.trained for one in above if one.trained), 0)


def _block(sizes: Sizes, index: int) -> Iterator[_Now]:
    """Yield the backward of block ``index``: its MLP, its attention, its gradients."""
    shape, work, state, block = sizes.shape, sizes.work, sizes.state, sizes.blocks[index]
    last, group = index == shape.layers - 1, state.blocks[index]
    behind = _behind(state, index, tied=shape.tied)
    name = f"backward of {'the last' if last else 'the first' if index == 0 else 'a'} block"
    # A tied head stays whole, with its gradient, until the embedding's is there.
    held = sizes.whole(state.ends if shape.tied else state.first)
    tied = sizes.own(state.ends) if shape.tied else 0.0
    done = sum(one.trained for one in state.blocks[index + 1 :])
    done += 0 if shape.tied else state.ends.trained
    here = sizes.whole(group) * (1 if work.reshard else index + 1)
    ahead = min(max(work.prefetch, 1), index)
    buffer = ahead * sizes.buffer(group) if work.reshard else 0.0
    below = sizes.kept[index] + sizes.held_mask
    kept = below + block.again
    idle = sizes.trained.idle[index]
    for part, activations, weights in (
        ("MLP", kept + block.working, _of_mlp(shape, work, idle, "down_proj")),
        (
            "attention",
            kept - block.mlp + block.attention,
            _of_mlp(shape, work, idle, "gate_proj", "up_proj", "down_proj", "router"),
        ),
    ):
        yield _Now(
            name=f"{name}, {part}",
            done=done,
            whole=held + here,
            buffer=buffer,
            sending=4.0 * behind,
            own=tied + float(work.width * weights),
            activations=activations,
        )
    yield _Now(
        name=f"{name}, its gradients",
        done=done,
        whole=held + here - sizes.whole(group),
        buffer=buffer,
        sending=4.0 * (group.trained or behind),
        received=4.0 * group.trained / work.shard,
        own=tied + sizes.own(group),
        activations=below - block.kept + sizes.hidden,
    )


def _of_mlp(shape: ModelShape, work: Workload, idle: frozenset[str], *names: str) -> int:
    """Return how many parameters of the MLP have gradients, of those that are named."""
    if work.rank:
        return 0
    parts = block_parameters(shape)
    return sum(
        size
        for _, short, size in parts
        if short.removesuffix(".bias") in names and short not in idle
    )
