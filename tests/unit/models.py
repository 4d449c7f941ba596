"""Models, trainings of them, and the GPUs and networks to do it on, for the planner."""

from __future__ import annotations

from typing import Any

from orchestrator.planner import forecast
from orchestrator.planner.forecast import Forecast
from orchestrator.planner.gpus import Gpu, find
from orchestrator.planner.layouts import Place
from orchestrator.planner.workload import Workload
from orchestrator.profile import FabricProfile
from orchestrator.spec.train import TrainSpec

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
LLAMA_70B: dict[str, Any] = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
TINY: dict[str, Any] = {**LLAMA_8B, "hidden_size": 64, "vocab_size": 256, "num_hidden_layers": 2}
NDR = FabricProfile(kind="infiniband", rate="NDR400", hcas_per_node=8)


def gpu(name: str = "H100-80") -> Gpu:
    """Return a GPU that the planner knows."""
    found = find(name)
    assert found
    return found


def work(**changes: Any) -> Workload:
    """Return what one GPU of eight does in a step."""
    return Workload(**{"batch": 2, "seq_len": 4096, "shard": 8, **changes})


def train(config: dict[str, Any] | None = None, **changes: Any) -> TrainSpec:
    """Return a training of LLAMA_8B, or of another model."""
    return TrainSpec.model_validate(
        {
            "model": {"config": config or LLAMA_8B},
            "data": {"text_files": ["x"], "seq_len": 4096},
            "steps": 1000,
            "global_batch": 64,
            **changes,
        }
    )


def seen(nodes: int = 1, on: str | None = "H100-80", **changes: Any) -> Forecast:
    """Return the forecast of a training on nodes of 8 GPUs; ``on`` None: nobody says which."""
    asked = train(**changes)
    place = Place(gpu=gpu(on) if on else None, per_node=8, fabric=NDR)
    return forecast(asked, asked.model.config or {}, place, nodes=nodes)


def of_70b(global_batch: int, *, nodes: int = 1, **changes: Any) -> Forecast:
    """On nodes of 4 x H100-80."""
    asked = train(LLAMA_70B, global_batch=global_batch, **changes)
    place = Place(gpu=gpu(), per_node=4, fabric=NDR)
    return forecast(asked, LLAMA_70B, place, nodes=nodes)
