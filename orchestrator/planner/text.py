"""A forecast for people, in about 25 lines. Pure."""

from collections.abc import Iterator

from orchestrator.planner.forecast import Forecast, spelled
from orchestrator.planner.gpus import GIB
from orchestrator.planner.layouts import Layout

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
    return f"{count} node{'s' * (count != 1)}"


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
        if size >= 0.005 * GIB:
            yield f"  {size / GIB:8.2f} GiB  {_WORDS[kind]}"
    verdict = ""
    if gpu is not None:
        free = (gpu.memory_bytes - memory.peak) / GIB
        verdict = f"; fits, {free:.1f} GiB left" if free >= 0 else f"; {-free:.1f} GiB too much"
        verdict += (
            " (tight: the prediction may be off by 5 %)" if seen.asked.tight and free >= 0 else ""
        )
    yield f"  {memory.peak / GIB:8.2f} GiB  in all{verdict}"
    if memory.host:
        yield f"  {memory.host / GIB:8.2f} GiB  of host memory for each GPU, offloaded"


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
    steps = f", {saves.every_steps:,} steps" if saves.every_steps else ""
    yield (
        f"checkpoints: {saves.checkpoint_bytes / GIB:.1f} GiB each,"
        f" {saves.disk_bytes / GIB:,.0f} GiB of disk; best every"
        f" {_duration(saves.every_s)}{steps}"
    )
    took = f"  a save takes about {_duration(saves.save_s)}"
    if not saves.host_bytes:
        yield f"{took}, for which the training waits"
        return
    yield (
        f"{took}, of which the training waits for about {saves.blocked_s:.1g} s; its copy takes"
        f" {saves.host_bytes / GIB:.1f} GiB of host memory for each GPU"
        f" ({saves.host_bytes * seen.place.per_node / GIB:,.0f} GiB a node)"
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
