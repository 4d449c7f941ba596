"""torch.compile, block by block.

All blocks of a model are alike, so one of them is compiled and the others reuse its code: seconds
instead of minutes, and gathering parameters stays between the blocks, where it overlaps.
"""

from transformers import PreTrainedModel

from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.anatomy import decoder_blocks


def compile_blocks(model: PreTrainedModel, spec: TrainSpec, *, backend: str = "inductor") -> None:
    """Have each decoder block of ``model`` compiled at its first call, where `compile` says so.

    `Module.compile` renames nothing, unlike `torch.compile(module)`. Shapes are taken as fixed.
    What cannot be compiled runs as it is; `describe_compilation` says so.
    """
    if not spec.compile:
        return
    if spec.deterministic:
        _choose_without_timing()
    for block in decoder_blocks(model).values():
        block.compile(backend=backend, dynamic=False)


def _choose_without_timing() -> None:
    """Keep inductor from choosing kernels by their speed: each start would choose others."""
    from torch._inductor import config

    if hasattr(config, "deterministic"):  # torch 2.10
        config.deterministic = True


def describe_compilation() -> str:
    """Return what this process has compiled so far, for people."""
    from torch._dynamo.utils import counters  # the best part of a second, for those who compile

    graphs = counters["stats"]["unique_graphs"]
    hits, breaks = counters["inductor"]["fxgraph_cache_hit"], counters["graph_break"]
    text = f"compiled {graphs} graphs, {hits} of them found in a cache"
    if breaks:
        reasons = "; ".join(" ".join(reason.split())[:100] for reason in breaks)
        text += f"; left uncompiled in {sum(breaks.values())} places: {reasons}"
    return text
