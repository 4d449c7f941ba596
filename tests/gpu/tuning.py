"""Fine-tunes on the GPUs of this machine: is the model the right one, and what does a step take?

    python -m tests.gpu.tuning [--out DIR] [--only NAME,...] [--budget 75]

One process a GPU, two at most. For each configuration a model with random weights is written as a
Hugging Face directory in bf16, loaded from it as a fine-tune does, compared with `from_pretrained`,
and trained for a few steps. Prints a table: how far the logits are from the reference (the trainer
allows 0.03 in bf16), how long loading and comparing took, how much host memory that took at most,
the rate and peak memory of the steps. On a machine without a GPU it runs tiny models with gloo.
"""

import argparse
import gc
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from orchestrator.errors import SpecError
from orchestrator.runtime.environment import read_environment
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.corpus import open_corpus
from orchestrator.trainer.training import build, train_step
from orchestrator.trainer.world import fix_arithmetic
from tests.gpu.planner_cases import MODELS
from tests.gpu.planner_parts import join, leave, start, world_of
from tests.gpu.results import Results, about, about_lines, markdown_table

Row = dict[str, Any]
_LORA = {"lora": {"rank": 16}}
_GEMMA2: dict[str, Any] = {
    "model_type": "gemma2", "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128,
}  # fmt: skip
_TINY: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
# Name: model, sequences of a micro-batch, keys of `train`.
CASES: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "1.1B": (MODELS["1.1B"], 2, {}),
    "1.1B fp32": (MODELS["1.1B"], 1, {"precision": "fp32"}),
    "1.1B LoRA": (MODELS["1.1B"], 2, _LORA),
    "1.1B LoRA compiled": (MODELS["1.1B"], 2, {**_LORA, "compile": True}),
    "1.1B LoRA FP8": (MODELS["1.1B"], 2, {**_LORA, "compile": True, "fp8": "rowwise"}),
    "qwen3 0.6B": (MODELS["qwen3 0.6B"], 2, {}),
    "gemma2": (_GEMMA2, 2, {}),
    "8B LoRA": (MODELS["8B"], 1, {**_LORA, "activation_checkpointing": "full"}),
}


def spec_of(name: str, base: Path, text: Path, world_size: int) -> TrainSpec:
    _, batch, keys = CASES[name]
    on_gpu = torch.cuda.is_available()
    data = {"text_files": [str(text)], "seq_len": 4096 if on_gpu else 64}
    return TrainSpec.model_validate(
        {
            "model": {"path": str(base)},
            "data": data,
            "steps": 10,
            "global_batch": batch * world_size,
            "micro_batch": batch,
            "deterministic": False,
            **keys,
        }
    )


def write_model(name: str, base: Path) -> None:
    """Write the model, on rank 0; drawn on the GPU, which takes seconds less."""
    config = CASES[name][0] if torch.cuda.is_available() else {**CASES[name][0], **_TINY}
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        made = AutoConfig.for_model(**config)
        AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16).save_pretrained(base)
    _reset()


def measured(name: str, folder: Path, rank: int, world_size: int) -> Row:
    base = folder / "base"
    if rank == 0:
        write_model(name, base)
    dist.barrier()
    spec = spec_of(name, base, folder / "text", world_size)
    fix_arithmetic(spec)
    world = world_of(read_environment(os.environ), spec)
    corpus = open_corpus(spec.data.text_files, seq_len=spec.data.seq_len)
    said: list[str] = []
    began = time.perf_counter()
    training = build(spec, world, corpus, fresh=True, say=said.append)
    built_s = time.perf_counter() - began
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    losses, times = [], []
    for _ in range(5):
        began = time.perf_counter()
        losses.append(train_step(training).loss)
        times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    tokens = spec.global_batch * spec.data.seq_len / world_size / min(times[1:])
    return {
        "said": said,
        "built_s": round(built_s, 2),
        "tokens_per_s_per_gpu": round(tokens),
        "peak_gib": round(peak, 2),
        "loss": [round(losses[0], 4), round(losses[-1], 4)],
    }


def _reset() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def table(ran_on: dict[str, str]) -> Callable[[Sequence[Row]], str]:
    heads = (
        "model", "logits differ by", "loaded in, s", "host memory, GiB", "built and compared, s",
        "tokens/s/GPU", "peak, GiB", "loss",
    )  # fmt: skip

    def cells(row: Row) -> list[object]:
        said = " ".join(row["said"])
        off = re.search(r"differ by (\S+)", said)
        why = re.search(r"not checked: (.*)", said)
        loaded = re.search(r"ranks in ([0-9.]+) s; a process had ([0-9.]+)", said)
        told = off[1] if off else (why[1] if why else "-")
        seconds, host = loaded.groups() if loaded else ("-", "-")
        first, last = row["loss"]
        rate = f"{row['tokens_per_s_per_gpu']:,}"
        loss = f"{first} to {last}"
        return [row["name"], told, seconds, host, row["built_s"], rate, row["peak_gib"], loss]

    def text(rows: Sequence[Row]) -> str:
        done = [cells(row) for row in rows if not row.get("trouble")]
        left = [f"- {row['name']}: {row['trouble']}" for row in rows if row.get("trouble")]
        return "\n".join([*about_lines(ran_on), *markdown_table(heads, done), "", *left])

    return text


def work(names: list[str], budget_s: float, out: Path | None) -> None:
    """Measure as one of the ranks; rank 0 keeps the rows."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    rank, world_size = join()
    began = time.perf_counter()
    folder = Path(os.environ["FSDPQ_RUN_DIR"])
    results = Results(out, "tuning", table({**about(), "ranks": str(world_size)}))
    for name in names:
        row: Row = {}
        try:
            late = torch.tensor(time.perf_counter() - began)
            dist.all_reduce(late, dist.ReduceOp.MAX)
            if float(late) > budget_s:
                raise TimeoutError("no time was left")
            row = measured(name, folder, rank, world_size)
        except (SpecError, RuntimeError, ImportError, OSError) as problem:
            row = {"trouble": f"{type(problem).__name__}: {str(problem).splitlines()[0]}"}
        _reset()
        dist.barrier()
        if rank == 0:
            results.add({"name": name, **row})
            shutil.rmtree(folder / "base", ignore_errors=True)
        dist.barrier()
    if rank == 0:
        print(results.markdown, flush=True)
    leave()


def launch(folder: Path) -> int:
    """Start the ranks; return torchrun's exit code."""
    (folder / "text").write_bytes(bytes(range(256)) * 4096)
    return start("tests.gpu.tuning", folder)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--budget", type=float, default=75.0, help="seconds after start-up")
    parser.add_argument("--out", type=Path, help="a folder for the rows, as they are measured")
    args = parser.parse_args()
    names = args.only.split(",")
    if wrong := set(names) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(wrong))}; there are {', '.join(CASES)}")
    if "RANK" in os.environ:
        work(names, args.budget, args.out if os.environ["RANK"] == "0" else None)
        return
    with tempfile.TemporaryDirectory() as made:
        sys.exit(launch(Path(made)))


if __name__ == "__main__":
    main()
