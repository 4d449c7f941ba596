"""torchtitan's own trainer on the shape, batch and precision of a row of tests.gpu.speed.

    torchrun ... -m tests.gpu.titan --shape JSON --batch 8 [--compile] [--recompute selective]
        [--fp8 tensorwise] --out FILE

Nothing of torchtitan is changed: its Trainer builds the model, shards it, makes the optimizer and
takes the steps. It is given token ids from memory, where its own loader would read text, and it is
timed between two steps. Written for torchtitan 0.2, the newest that loads beside torch 2.11.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.results import version

_TIMEOUT_S = 240


def why_not() -> str:
    """Return why torchtitan cannot be measured here; empty if it can."""
    found = version("torchtitan")
    if not found:
        return "torchtitan is not installed"
    if not found.startswith("0.2."):
        return f"torchtitan {found}: this script is written for 0.2"
    return "" if torch.cuda.is_available() else "torchtitan trains on GPUs alone"


def run(
    shape: dict[str, int], *, ranks: int, batch: int, compiled: bool, recompute: str, fp8: str
) -> dict[str, Any]:
    """Measure one row in processes of its own. From one process alone.

    Raises:
        RuntimeError: It came to nothing; says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        argv += [f"--nproc-per-node={ranks}", "-m", "tests.gpu.titan", f"--out={out}"]
        argv += [f"--shape={json.dumps(shape)}", f"--batch={batch}", f"--recompute={recompute}"]
        argv += [f"--fp8={fp8}", *(["--compile"] if compiled else [])]
        log = Path(folder) / "log"
        with log.open("w") as file:
            try:
                done = subprocess.run(
                    argv,
                    env=_environment(),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=_TIMEOUT_S,
                )
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"not done after {_TIMEOUT_S} s") from None
        if done.returncode or not out.exists():
            raise RuntimeError(_last_word(log.read_text()) or f"exit code {done.returncode}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def _environment() -> dict[str, str]:
    """Return the environment without what torchrun told this process."""
    ours = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return {"PYTORCH_ALLOC_CONF": "expandable_segments:True", **kept}


def _last_word(log: str) -> str:
    """Return the last line that names an error."""
    lines = [line.strip() for line in log.splitlines()]
    return next(
        (line[:300] for line in reversed(lines) if "Error" in line and "Root" not in line), ""
    )


# -- in the ranks ----------------------------------------------------------------------------------


def _stand_in_for_datasets() -> None:
    """Let torchtitan be imported where `datasets` is not installed: none of it is used here."""
    if util.find_spec("datasets"):
        return
    for name, members in (
        ("datasets", ("Dataset", "load_dataset")),
        ("datasets.distributed", ("split_dataset_by_node",)),
    ):
        module = types.ModuleType(name)
        module.__dict__.update(dict.fromkeys(members))
        sys.modules[name] = module


def _random_tokens(*, vocab: int, batch: int, seq_len: int, seed: int) -> Any:
    """Return a loader of token ids for ever, of the kind that torchtitan checkpoints."""
    base: Any = importlib.import_module("torchtitan.components.dataloader").BaseDataLoader

    class Tokens(base):  # type: ignore[misc]
        def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            drawn = torch.Generator().manual_seed(seed)
            while True:
                ids = torch.randint(0, min(vocab, 256), (batch, seq_len + 1), generator=drawn)
                yield {"input": ids[:, :-1]}, ids[:, 1:]

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pass

    return Tokens()


def _register(shape: dict[str, int]) -> None:
    """Tell torchtitan of its Llama in this shape, fed from memory."""
    llama3 = importlib.import_module("torchtitan.models.llama3")
    train_spec = importlib.import_module("torchtitan.protocols.train_spec")
    args = llama3.TransformerModelArgs(
        dim=shape["hidden"],
        n_layers=shape["layers"],
        n_heads=shape["heads"],
        n_kv_heads=shape["kv_heads"],
        vocab_size=shape["vocab"],
        rope_theta=500000,
        # It makes the inner width multiple_of * ceil(factor * 8/3 * dim / multiple_of).
        multiple_of=shape["inner"],
        ffn_dim_multiplier=0.375 * shape["inner"] / shape["hidden"],
    )

    def loader(dp_rank: int, job_config: Any, **_: Any) -> Any:
        training = job_config.training
        return _random_tokens(
            vocab=shape["vocab"],
            batch=training.local_batch_size,
            seq_len=training.seq_len,
            seed=dp_rank,
        )

    spec = dataclasses.replace(
        llama3.get_train_spec(),
        model_args={"row": args},
        build_dataloader_fn=loader,
        build_tokenizer_fn=None,
        state_dict_adapter=None,
    )
    train_spec.register_train_spec("row", spec)


def _configure(options: argparse.Namespace, folder: str) -> Any:
    """Return torchtitan's configuration of the row."""
    config: Any = importlib.import_module("torchtitan.config").JobConfig()
    config.job.dump_folder = folder
    config.model.name, config.model.flavor = "row", "row"
    config.training.local_batch_size = options.batch
    config.training.seq_len = options.shape["seq_len"]
    config.training.steps = options.warm_up + options.steps
    config.metrics.log_freq = 1_000_000
    config.optimizer.lr = 3e-4
    config.lr_scheduler.warmup_steps = 1
    config.activation_checkpoint.mode = {"off": "none"}.get(options.recompute, options.recompute)
    config.compile.enable = options.compile
    if options.fp8 != "off":
        config.model.converters = ["quantize.linear.float8"]
        config.quantize.linear.float8.recipe_name = options.fp8
        config.quantize.linear.float8.filter_fqns = ["output"]
        if options.fp8 == "tensorwise":  # as its own job files have it
            config.quantize.linear.float8.recipe_name = None
            config.quantize.linear.float8.enable_fsdp_float8_all_gather = True
            config.quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp = True
    return config


def _measure(options: argparse.Namespace, config: Any) -> dict[str, Any]:
    """Train; return seconds a step, the peak of memory and how many parameters there are."""
    trainer_class: Any = importlib.import_module("torchtitan.train").Trainer
    marks: dict[int, float] = {}

    class Timed(trainer_class):  # type: ignore[misc]
        def train_step(self, data_iterator: Any) -> None:
            if self.step in (1, options.warm_up + 1):
                marks[self.step] = _now()
            super().train_step(data_iterator)
            if self.step == config.training.steps:
                marks[self.step + 1] = _now()

    trainer = Timed(config)
    trainer.train()
    first, begun, ended = sorted(marks.values())
    gpu = torch.cuda.is_available()
    found = {
        "step_s": (ended - begun) / options.steps,
        "warm_up_s": begun - first,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if gpu else None,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30 if gpu else None,
        "parameters": sum(p.numel() for part in trainer.model_parts for p in part.parameters()),
        "torchtitan": version("torchtitan"),
    }
    trainer.close()
    return found


def _now() -> float:
    """Return the time when all ranks have done what they were told."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    dist.barrier()
    return time.perf_counter()


def main() -> None:
    """Measure one row, as one of the ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", type=json.loads, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--recompute", default="off")
    parser.add_argument("--fp8", default="off")
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    _stand_in_for_datasets()
    _register(options.shape)
    with tempfile.TemporaryDirectory() as folder:
        found = _measure(options, _configure(options, folder))
        if dist.get_rank() == 0:
            options.out.write_text(json.dumps(found))
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
