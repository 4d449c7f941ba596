"""What data cost: waiting for samples, packing by document, a validation. GPU or CPU.

    python -m tests.gpu.data [--tiny] [--json FILE]

Token shards of random documents are written to a temporary folder, and a Llama is trained on them
for some steps on one rank: with and without reading ahead, as a stream and by documents. Each row
is the median of the steps after the first ones. The last column compares a packed sample with its
documents alone.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orchestrator.runtime.environment import read_environment
from orchestrator.spec.train import TrainSpec
from orchestrator.tokens.index import Index, ShardEntry
from orchestrator.tokens.shard import ShardWriter
from orchestrator.trainer import training as parts
from orchestrator.trainer.attending import attend, check_documents
from orchestrator.trainer.corpus import open_shards
from orchestrator.trainer.evaluation import Evaluator
from orchestrator.trainer.packing import IGNORED
from orchestrator.trainer.world import World, connect, fix_arithmetic

CASES: dict[str, dict[str, Any]] = {
    "stream, nothing read ahead": {"read_ahead": 0},
    "stream": {},
    "documents": {"packing": "documents"},
}
VOCABULARY = 32_000


def shape(*, tiny: bool) -> dict[str, Any]:
    """Return the model: 1.1 billion parameters, or next to none."""
    if tiny:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        return {**sizes, "num_attention_heads": 4, "num_key_value_heads": 2, "model_type": "llama"}
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
    return {**sizes, "num_attention_heads": 32, "num_key_value_heads": 4, "model_type": "llama"}


def write_shards(folder: Path, *, tokens: int) -> None:
    """Write random documents, 400 tokens long on average."""
    rng, held, writer = np.random.default_rng(0), 0, ShardWriter(2)
    while held < tokens:
        length = 1 + int(rng.exponential(400))
        writer.add(rng.integers(0, VOCABULARY, size=length).tolist())
        held += length
    header, digest = writer.write(folder / "0.bin")
    entry = ShardEntry(
        file="0.bin",
        tokens=header.tokens,
        documents=header.documents,
        largest=header.largest,
        digest=digest,
    )
    index = Index(width=2, vocab_size=VOCABULARY, tokenizer="random", shards=(entry,))
    (folder / "index.json").write_text(json.dumps(index.to_json()))


def spec_of(folder: Path, data: dict[str, Any], *, tiny: bool, steps: int) -> TrainSpec:
    """Return what a row trains."""
    length, batch = (128, 2) if tiny else (4096, 4)
    return TrainSpec.model_validate(
        {
            "model": {"config": {**shape(tiny=tiny), "vocab_size": VOCABULARY}},
            "data": {"shards": [str(folder)], "seq_len": length, **data},
            "eval": {"shards": [str(folder)], "batches": 4},
            "steps": steps,
            "global_batch": batch,
            "micro_batch": batch,
            "deterministic": False,
        }
    )


def alone(training: parts.Training) -> float:
    """Return by how much the loss of a sample differs from that of its documents alone."""
    batch = training.loader.portion(0).batches[0].result().on(training.world.device)
    if batch.positions is None:
        return float("nan")
    begins = (batch.positions[0] == 0).nonzero().flatten().tolist()
    total, count = 0.0, 0
    with torch.no_grad():
        for begin, end in zip(begins, [*begins[1:], batch.inputs.shape[1]], strict=True):
            inputs, targets = batch.inputs[:1, begin:end], batch.targets[:1, begin:end]
            if (targets != IGNORED).any():
                total += float(training.model(input_ids=inputs, targets=targets, divisor=1))
                count += int((targets != IGNORED).sum())
        kept = torch.full_like(batch.targets, IGNORED)
        kept[0] = batch.targets[0]
        called = {**attend(batch, training.spec), "targets": kept}
        packed = float(training.model(**called, divisor=1))
    return abs(packed - total) / count


def measure(name: str, folder: Path, world: World, *, tiny: bool, steps: int) -> dict[str, Any]:
    """Return one row."""
    spec = spec_of(folder, CASES[name], tiny=tiny, steps=steps)
    corpus = open_shards(folder, seq_len=spec.data.seq_len)
    training = parts.build(spec, world, corpus, fresh=True)
    if spec.data.packing == "documents":
        check_documents(training.model, spec, world)
    differs = alone(training)
    times, waits = [], []
    for _ in range(steps):
        began = time.perf_counter()
        result = parts.train_step(training)
        times.append(time.perf_counter() - began)
        waits.append(result.data_wait_s)
    evaluator = Evaluator.of(training, corpus)
    assert evaluator is not None
    evaluator.measure(stop=lambda: False)
    seen = evaluator.measure(stop=lambda: False)
    assert seen is not None
    tokens = spec.global_batch * spec.data.seq_len
    step_s = statistics.median(times[steps // 3 :])
    return {
        "case": name,
        "step_s": step_s,
        "tokens_per_s": tokens / step_s,
        "data_wait_s": statistics.median(waits[steps // 3 :]),
        "eval_tokens_per_s": seen["tokens"] / max(seen["seconds"], 1e-9),
        "packed_minus_alone": differs,
    }


def rows(*, tiny: bool, steps: int) -> Iterator[dict[str, Any]]:
    """Yield the rows, one after the other."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_shards(folder, tokens=20_000 if tiny else 2_000_000)
        env = read_environment({"FSDPQ_RUN_DIR": text, "FSDPQ_ATTEMPT": "1"})
        spec = spec_of(folder, {}, tiny=tiny, steps=steps)
        fix_arithmetic(spec)
        world = connect(env, spec)
        for name in CASES:
            yield measure(name, folder, world, tiny=tiny, steps=steps)
        torch.distributed.destroy_process_group()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true", help="as on a CPU")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tiny = options.tiny or not torch.cuda.is_available()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{where}, torch {torch.__version__}{', tiny' if tiny else ''}")
    head = ("CASE", "STEP s", "TOKENS/s", "WAIT ms", "EVAL TOKENS/s", "PACKED - ALONE")
    print("{:<28}{:>9}{:>12}{:>10}{:>15}{:>16}".format(*head))
    found = []
    for row in rows(tiny=tiny, steps=options.steps):
        found.append(row)
        print(
            f"{row['case']:<28}{row['step_s']:>9.3f}{row['tokens_per_s']:>12,.0f}"
            f"{1e3 * row['data_wait_s']:>10.2f}{row['eval_tokens_per_s']:>15,.0f}"
            f"{row['packed_minus_alone']:>16.2g}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
