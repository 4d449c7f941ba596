"""The moments of a backward: the last norm and the head, the blocks, the embedding. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.planner.now import Now
from orchestrator.planner.sizes import Sizes
from orchestrator.planner.state import State
from orchestrator.planner.trained import block_parameters


def backward(sizes: Sizes) -> Iterator[Now]:
    """Yield the moments at which a GPU may hold most, from the last norm to the embedding."""
    yield from _ends(sizes)
    for index in _telling(sizes):
        yield from _block(sizes, index)
    yield from _embedding(sizes)


def _ends(sizes: Sizes) -> Iterator[Now]:
    """Yield the backward of the last norm, and the gradient of a head of its own."""
    shape, work, state = sizes.shape, sizes.work, sizes.state
    first = sizes.whole(state.first)
    yield Now(
        name="backward of the last norm",
        whole=first + sizes.whole(state.ends) + sizes.open_blocks,
        buffer=sizes.buffer(state.block),
        own=sizes.own(state.ends),
        # Four numbers in fp32 for each that goes in.
        activations=sizes.saved + 16.0 * work.tokens * shape.hidden,
    )
    if not shape.tied:
        yield Now(
            name="gradient of the head",
            whole=first + sizes.open_blocks,
            buffer=sizes.buffer(state.block),
            sending=4.0 * state.ends.trained,
            received=4.0 * state.ends.trained / work.shard,
            own=sizes.own(state.ends),
            activations=sizes.saved - sizes.last_norm + sizes.hidden,
        )


def _embedding(sizes: Sizes) -> Iterator[Now]:
    """Yield what comes after the last block: the gradient of the embedding, tied or not."""
    shape, work, state = sizes.shape, sizes.work, sizes.state
    if shape.tied:  # the embedding's gradient, the head's, and their sum
        yield Now(
            name="sum of the gradients of embedding and head",
            done=state.trained - state.ends.trained,
            whole=sizes.whole(state.ends),
            sending=4.0 * _behind(state, -1, tied=True),
            own=3.0 * sizes.own(state.ends),
            activations=sizes.hidden,
        )
    last = state.ends if shape.tied else state.first
    if last.trained:
        yield Now(
            name="gradient of the embedding",
            done=state.trained - last.trained,
            sending=4.0 * last.trained,
            received=4.0 * last.trained / work.shard,
            own=sizes.own(last),
            activations=sizes.hidden,
        )


def _telling(sizes: Sizes) -> list[int]:
    """Return the blocks to look at, the last one first.

    What is needed falls or rises evenly from the last but one to the first, unless some of the
    blocks are frozen.
    """
    layers = sizes.shape.layers
    even = {sizes.first, max(layers - 2, 0), layers - 1}
    asked = set(range(layers)) if sizes.work.freeze else even
    return sorted((index for index in asked if index >= sizes.first), reverse=True)


def _block(sizes: Sizes, index: int) -> Iterator[Now]:
    """Yield the backward of block ``index``: its MLP, its attention, its gradients."""
    block, group, base = sizes.blocks[index], sizes.state.blocks[index], _around(sizes, index)
    shape = sizes.shape
    below = sizes.kept[index] + sizes.held_mask
    kept = below + block.again
    yield replace(
        base,
        name=f"{base.name}, MLP",
        own=base.own + _of_mlp(sizes, index, "down_proj"),
        activations=kept + block.working,
    )
    yield replace(
        base,
        name=f"{base.name}, attention",
        own=base.own + _of_mlp(sizes, index, *shape.into_mlp, "down_proj", "router"),
        activations=kept - block.mlp + block.attention,
    )
    yield replace(
        base,
        name=f"{base.name}, its gradients",
        whole=base.whole - sizes.whole(group),
        sending=4.0 * group.trained or base.sending,
        received=4.0 * group.trained / sizes.work.shard,
        own=base.own + sizes.own(group),
        activations=below - block.kept + sizes.hidden,
    )


def _around(sizes: Sizes, index: int) -> Now:
    """Return what is there all through the backward of block ``index``, its name among it."""
    shape, work, state, group = sizes.shape, sizes.work, sizes.state, sizes.state.blocks[index]
    # A tied head stays whole, with its gradient, until the embedding's is there.
    held = sizes.whole(state.ends if shape.tied else state.first)
    done = sum(one.trained for one in state.blocks[index + 1 :])
    ahead = min(max(work.prefetch, 1), index)
    which = "the last" if index == shape.layers - 1 else "the first" if index == 0 else "a"
    return Now(
        name=f"backward of {which} block",
        done=done + (0 if shape.tied else state.ends.trained),
        whole=held + sizes.whole(group) * (1 if work.reshard else index + 1),
        buffer=ahead * sizes.buffer(group) if work.reshard else 0.0,
        sending=4.0 * _behind(state, index, tied=shape.tied),
        own=sizes.own(state.ends) if shape.tied else 0.0,
    )


def _behind(state: State, index: int, *, tied: bool) -> int:
    """Return how many parameters the last group had that was scattered before block ``index``.

    Groups that do not train are passed over: nothing lets go of the buffer before them.
    """
    above = (*state.blocks, *(() if tied else (state.ends,)))[index + 1 :]
    return next((one.trained for one in above if one.trained), 0)


def _of_mlp(sizes: Sizes, index: int, *names: str) -> float:
    """Return the bytes of gradients that the MLP of block ``index`` has, of those named."""
    if sizes.work.rank:
        return 0.0
    idle = sizes.trained.idle[index]
    numbers = sum(
        size
        for _, short, size in block_parameters(sizes.shape)
        if short.removesuffix(".bias") in names and short not in idle
    )
    return float(sizes.work.width * numbers)
