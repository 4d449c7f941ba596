"""The moments of a forward, the loss among them. Pure."""

from collections.abc import Iterator

from orchestrator.planner.now import Now
from orchestrator.planner.sizes import Sizes
from orchestrator.planner.workload import Workload


def forward(sizes: Sizes) -> Iterator[Now]:
    """Yield the moments at which a GPU may hold most before the blocks' backward."""
    yield _last_block(sizes)
    yield _gathering(sizes)
    yield from _loss(sizes)


def _last_block(sizes: Sizes) -> Now:
    shape, work, state, block = sizes.shape, sizes.work, sizes.state, sizes.blocks[-1]
    return Now(
        name="forward of the last block",
        whole=sizes.whole(state.ends if shape.tied else state.first)
        + (sizes.open_blocks or sizes.whole(state.block)),
        buffer=max(2, work.prefetch + 1) * sizes.buffer(state.block) + sizes.copies(state.block),
        activations=sizes.kept[-1] + block.again + block.forward + sizes.mask,
    )


def _gathering(sizes: Sizes) -> Now:
    """Return the gathering of the largest group, while the buffer of a block is still there."""
    shape, state = sizes.shape, sizes.state
    buffer = sizes.buffer(state.block) + sizes.buffer(state.ends) + sizes.copies(state.ends)
    if shape.tied:  # the ends come first, and a block then
        return Now(
            name="gathering of the first block", whole=sizes.whole(state.ends), buffer=buffer
        )
    return Now(
        name="gathering of the head",
        whole=sizes.whole(state.first) + (sizes.open_blocks or sizes.whole(state.block)),
        buffer=buffer,
        activations=sizes.kept[-1] + sizes.held_mask + sizes.hidden,
    )


def _loss(sizes: Sizes) -> Iterator[Now]:
    """Yield the head and the loss, which is a part of the model's forward."""
    shape, work, state = sizes.shape, sizes.work, sizes.state
    whole = sizes.whole(state.first) + sizes.whole(state.ends) + sizes.open_blocks
    # The head's buffer is let go of at the end of the forward. A tied one was, long before.
    buffer = sizes.buffer(state.block if shape.tied else state.ends)
    head = sizes.head
    if work.in_parts:
        yield Now(
            name="loss, in parts",
            whole=whole,
            buffer=buffer,
            own=4.0 * head,
            activations=sizes.saved + sizes.hidden,
            logits=_part_of_loss(work, float(work.loss_rows * shape.vocab), float(head)),
        )
    else:
        yield from _whole_loss(sizes, whole=whole, buffer=buffer)
    yield Now(
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


def _whole_loss(sizes: Sizes, *, whole: float, buffer: float) -> Iterator[Now]:
    work = sizes.work
    words = float(work.tokens * sizes.shape.vocab)
    copies = 8.0 + (work.width if work.width == 2 else 0)  # the logits, in fp32, and log-softmax
    yield Now(
        name="loss",
        whole=whole,
        buffer=buffer,
        activations=sizes.saved,
        logits=words * (2.0 * work.width if work.fused_loss else copies),
    )
    yield Now(
        name="backward of the loss",
        whole=whole,
        activations=sizes.saved,
        # Log-softmax, its gradient and that of the logits.
        logits=words * (2.0 * work.width if work.fused_loss else 12.0),
        # Into the place of the logits and of those in fp32, side by side, one of the two gradients
        # fits, and the rest of it stays empty.
        unused=0.0 if work.fused_loss or work.width == 4 else work.width * words,
    )
