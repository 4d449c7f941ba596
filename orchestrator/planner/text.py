"""A forecast for people, in about 30 lines. Pure."""

from collections.abc import Iterator

from orchestrator.planner.forecast import Forecast, spelled
from orchestrator.planner.gpus import GIB
from orchestrator.planner.layouts import Layout
from orchestrator.planner.memory import MIB

_WORDS = {
    "parameters": "parameters, fp32, this GPU's part",
    "optimizer": "AdamW's moments, fp32, this GPU's part",
    "gradients": "gradients",
    "unsharded": "blocks gathered to compute with",
    "activations": "activations",
    "logits": "logits and their gradient",
    "communication": "buffers of collectives",
    "workspace": "workspaces of matrix products",
    "allocator": "kept by the allocator, other streams",
    "context": "CUDA and NCCL",
}


def lines(seen: Forecast) -> Iterator[str]:
    """Yield the lines of ``seen``."""
    yield from _head(seen)
    yield ""
    yield from _memory(seen)
    yield ""
    yield from _speed(seen)
    yield from _saves(seen)
    if seen.layouts:
        yield ""
        yield f"best layouts on {_nodes(seen.asked.nodes)}"
        yield from (_layout(one) for one in seen.layouts)
    yield ""
    yield f"More than one node? {seen.answer}"


def _nodes(count: int) -> str:
    return _count(count, "node")


def _count(count: int, what: str) -> str:
    """Return a number of things.

    >>> _count(1, "step"), _count(1200, "step")
    ('1 step', '1,200 steps')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def _size(size: float) -> str:
    """Return bytes for a column.

    >>> _size(3 * GIB), _size(0.05 * GIB)
    ('    3.00 GiB', '    51.2 MiB')
    """
    return f"{size / GIB:8.2f} GiB" if size >= 0.1 * GIB else f"{size / MIB:8.1f} MiB"


def _short(size: float) -> str:
    """Return bytes within a sentence.

    >>> _short(2365 * GIB), _short(12.3 * GIB), _short(0.05 * GIB), _short(1e5)
    ('2,365 GiB', '12.3 GiB', '51 MiB', '0.1 MiB')
    """
    if size >= 0.1 * GIB:
        return f"{size / GIB:,.0f} GiB" if size >= 1000 * GIB else f"{size / GIB:.1f} GiB"
    return f"{size / MIB:.0f} MiB" if size >= 10 * MIB else f"{size / MIB:.1f} MiB"


def _head(seen: Forecast) -> Iterator[str]:
    shape, place, options = seen.shape, seen.place, seen.options
    gpu = f"{place.gpu.name} ({place.gpu.memory_bytes / GIB:.1f} GiB)" if place.gpu else "GPU"
    yield (
        f"{shape.family}, {shape.parameters:,} parameters; {_nodes(seen.asked.nodes)} x"
        f" {place.per_node} x {gpu}"
    )
    yield (
        f"global batch {seen.train.global_batch} x {seen.train.data.seq_len} tokens; "
        + spelled(options)
    )


def _memory(seen: Forecast) -> Iterator[str]:
    memory, gpu = seen.asked.memory, seen.place.gpu
    yield f"memory of a GPU at its highest: {memory.moment}"
    for kind, size in memory.to_json().items():
        if size >= 0.05 * MIB:
            yield f"  {_size(size)}  {_WORDS[kind]}"
    verdict = ""
    if gpu is not None:
        free = (gpu.memory_bytes - memory.peak) / GIB
        verdict = f"; fits, {free:.1f} GiB left" if free >= 0 else f"; {-free:.1f} GiB too much"
        verdict += (
            " (tight: the prediction may be off by 5 %)" if seen.asked.tight and free >= 0 else ""
        )
    yield f"  {_size(memory.peak)}  in all{verdict}"
    if memory.host:
        yield f"  {_size(memory.host)}  of host memory for each GPU, offloaded"


def _speed(seen: Forecast) -> Iterator[str]:
    speed = seen.asked.speed
    if speed is None or seen.total_s is None:
        yield "speed: unknown without the kind of GPU"
        return
    yield (
        f"speed: a step of {speed.step_s:.3g} s, {speed.tokens_per_s_per_gpu:,.0f} tokens/s/GPU,"
        f" {speed.share:.0%} of the bf16 peak; +-{speed.within:.0%}"
    )
    yield f"  from: {speed.source}"
    waits = f"; {speed.exposed_s:.3g} s of a step waits for the network" if speed.exposed_s else ""
    yield f"  {seen.train.steps:,} steps in {_duration(seen.total_s)}{waits}"


def _saves(seen: Forecast) -> Iterator[str]:
    saves = seen.saves
    steps = f", {_count(saves.every_steps, 'step')}" if saves.every_steps else ""
    yield (
        f"checkpoints: {_short(saves.checkpoint_bytes)} each,"
        f" {_short(saves.disk_bytes)} of disk; best every {_duration(saves.every_s)}{steps}"
    )
    took = f"  a save takes about {_duration(saves.save_s)}"
    if not saves.host_bytes:
        alone = seen.train.checkpoint.mode == "auto"
        why = " (mode: auto is sync without GPUs)" if alone else ""
        yield f"{took}, for which the training waits{why}"
        return
    yield f"{took}, of which the training waits for about {saves.blocked_s:.1g} s"
    yield (
        f"  its copy takes {_short(saves.host_bytes)} of host memory for each GPU"
        f" ({_short(saves.host_bytes * seen.place.per_node)} a node)"
    )


def _layout(one: Layout) -> str:
    options = spelled(one.options)
    fast = f"{one.speed.tokens_per_s_per_gpu:8,.0f} tokens/s/GPU" if one.speed else ""
    return f"  {fast}, {one.memory.peak / GIB:6.1f} GiB: {options}"


def _duration(seconds: float) -> str:
    """Return ``seconds`` in words.

    >>> _duration(4.2), _duration(600), _duration(7260), _duration(400_000)
    ('4 s', '10 min', '2.0 h', '4.6 days')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
