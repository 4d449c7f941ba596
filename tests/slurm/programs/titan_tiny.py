"""jobs/torchtitan_run.py on a tiny model, also where there is no GPU.

    titan_tiny.py SCRIPT --module=titan_tiny --config=tiny ...    runs SCRIPT, unchanged

torchtitan 0.3 knows no other devices than accelerators. Without one it is told that the CPU is its
device, and what stands in the way is put aside: its kernels for expert parallelism want triton when
they are imported, the device's memory is asked for, time-outs are set by way of a barrier on a
numbered device, and gloo cannot scale while it sums. `tiny` is a configuration of it, with plain
attention and fed from memory.
"""

import runpy
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from orchestrator import runtime

runtime.attach()

import torch  # noqa: E402
import torch._utils  # noqa: E402

KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"
TEXT = Path(runtime.__file__).read_bytes()


def on_cpu() -> None:
    """Make torchtitan believe in the CPU. Before it is imported."""
    kernels = types.ModuleType(KERNELS)
    kernels.__getattr__ = lambda name: mock.MagicMock()  # type: ignore[method-assign]
    sys.modules[KERNELS] = kernels
    torch._utils._get_available_device_type = lambda: "cpu"
    from torchtitan.components import metrics
    from torchtitan.distributed import utils

    metrics.build_device_memory_monitor = NoMemory
    utils.set_pg_timeouts = lambda **_: None  # by way of a barrier on a numbered device


class NoMemory:
    """The memory of a device that has none."""

    device_name = "cpu"

    def get_peak_stats(self) -> Any:
        known = ("max_active_gib", "max_active_pct", "max_reserved_gib", "max_reserved_pct")
        return types.SimpleNamespace(**dict.fromkeys((*known, "num_alloc_retries", "num_ooms"), 0))

    def reset_peak_stats(self) -> None:
        pass


def summing(parallelize: Any) -> Any:
    """Return ``parallelize`` with gradients that are summed: gloo cannot scale them meanwhile."""

    def parallelized(*args: Any, **kwargs: Any) -> Any:
        model = parallelize(*args, **kwargs)
        for module in model.modules():
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)
        return model

    return parallelized


class Windows(torch.utils.data.IterableDataset[Any]):
    """Windows of a text; the ranks take turns. Its state is how far this rank is."""

    def __init__(self, *, rank: int, ranks: int, length: int) -> None:
        self.rank, self.ranks, self.length, self.taken = rank, ranks, length, 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            number = self.taken * self.ranks + self.rank
            first = number * self.length % (len(TEXT) - self.length - 1)
            ids = torch.tensor(list(TEXT[first : first + self.length + 1]))
            self.taken += 1
            yield {"input": ids[:-1], "positions": torch.arange(self.length)}, ids[1:]

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


def tiny() -> Any:
    """A Llama of two layers, fed from memory: one of torchtitan's configurations."""
    from torchtitan.components.dataloader import ParallelAwareDataloader
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.models.common import ScaledDotProductAttention
    from torchtitan.models.llama3 import config_registry, model_registry

    class Loader(ParallelAwareDataloader):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(ParallelAwareDataloader.Config):  # type: ignore[misc]
            pass

        def __init__(
            self,
            config: Config,
            *,
            dp_world_size: int,
            dp_rank: int,
            seq_len: int,
            local_batch_size: int,
            **_: Any,
        ) -> None:
            windows = Windows(rank=dp_rank, ranks=dp_world_size, length=seq_len)
            super().__init__(windows, dp_rank, dp_world_size, batch_size=local_batch_size)

    class Tokenizer(BaseTokenizer):  # type: ignore[misc]
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):  # type: ignore[misc]
            pass

        def __init__(self, config: Config, **_: Any) -> None:
            super().__init__()

        def encode(self, *args: Any, **kwargs: Any) -> list[int]:
            return list(TEXT)

        def decode(self, *args: Any, **kwargs: Any) -> str:
            return ""

        def get_vocab_size(self) -> int:
            return 256

    config = config_registry.llama3_debugmodel()
    config.model_spec = model_registry("debugmodel")
    config.model_spec.parallelize_fn = summing(config.model_spec.parallelize_fn)
    layers = config.model_spec.model.layers = config.model_spec.model.layers[:2]
    for layer in layers:  # flex attention has no backward pass on CPUs
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.dataloader, config.tokenizer = Loader.Config(), Tokenizer.Config()
    config.training.local_batch_size, config.training.seq_len = 2, 32
    config.training.disable_cuda_graphs = True
    config.parallelism.spmd_backend = "partial_dtensor"  # the others want a newer torch than 2.13
    config.validator.enable = config.compile.enable = False
    config.activation_checkpoint = None
    return config


if __name__ == "__main__":
    if not torch.cuda.is_available():
        on_cpu()
    sys.modules["titan_tiny"] = sys.modules["__main__"]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
