"""Two ranks that load many models: `python -m tests.e2e.family_program FOLDER`.

Each folder in FOLDER/models is a model in Hugging Face's format; FOLDER/cases.json has what to do
with them. Rank 0 writes what came of a case to FOLDER/results/CASE.
"""

import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from orchestrator.errors import FsdpqError
from orchestrator.runtime.environment import read_environment
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer import model as models
from orchestrator.trainer import training as parts
from orchestrator.trainer import weights
from orchestrator.trainer.corpus import open_corpus
from orchestrator.trainer.world import World, connect, leave
from tests.e2e.rank_program import free_port

WORLD_SIZE = 2


def attempt(case: dict[str, Any], world: World) -> dict[str, Any]:
    """Load a model and train one step; return what is to be seen of it."""
    case = dict(case)
    spoiled = case.pop("spoil", None)
    spec = TrainSpec.model_validate(case)
    corpus = open_corpus(spec.data.text_files, seq_len=spec.data.seq_len)
    said: list[str] = []
    fill = weights.fill
    if spoiled:
        vars(models)["fill"] = _spoiling(spoiled)
    gc.collect()
    try:
        training = parts.build(spec, world, corpus, fresh=True, say=said.append)
    except FsdpqError as problem:
        return {"error": str(problem)}
    finally:
        vars(models)["fill"] = fill
    found = _compare(training, spec) if case["model"].get("path") else {}
    result = parts.train_step(training)
    return {**found, "said": said, "loss": result.loss, "grad_norm": result.grad_norm}


def _spoiling(name: str) -> Any:
    """Return a `fill` that gets a buffer slightly wrong, as forgetting it does."""

    def fill(model: Any, *args: Any, **kwargs: Any) -> None:
        weights.fill(model, *args, **kwargs)
        model.get_buffer(name).mul_(1.01)

    return fill


def _compare(training: parts.Training, spec: TrainSpec) -> dict[str, Any]:
    """Compare with from_pretrained: logits of a long sequence, weights and buffers."""
    model = training.model
    reference = AutoModelForCausalLM.from_pretrained(
        spec.model.path,
        dtype=torch.float32,
        attn_implementation=model.config._attn_implementation,
    )
    tokens = torch.arange(80).reshape(1, 80) % 256
    with torch.no_grad():
        found, wanted = (m.eval()(input_ids=tokens).logits for m in (model, reference))
    model.train()
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    full = {name: whole(value) for name, value in model.named_parameters()}
    return {
        "logits": torch.equal(found, wanted),
        "weights": all(torch.equal(full[n], p) for n, p in reference.named_parameters()),
        "buffers": all(torch.equal(model.get_buffer(n), b) for n, b in reference.named_buffers()),
        "sharded": any(whole(p).numel() > p.to_local().numel() for p in model.parameters()),
    }


def whole(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def work(folder: Path, rank: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(WORLD_SIZE),
        LOCAL_RANK=str(rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        FSDPQ_RUN_DIR=str(folder),
        FSDPQ_ATTEMPT="1",
    )
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    cases = json.loads((folder / "cases.json").read_text())
    world = connect(
        read_environment(os.environ), TrainSpec.model_validate(next(iter(cases.values())))
    )
    for name, case in cases.items():
        began = time.perf_counter()
        found = attempt(case, world)
        found["seconds"] = time.perf_counter() - began
        if rank == 0:
            (folder / "results" / name).write_text(json.dumps(found))
        dist.barrier()
    leave(world)


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    (folder / "results").mkdir()
    port = free_port()
    pids = []
    for rank in range(WORLD_SIZE):
        if pid := os.fork():
            pids.append(pid)
            continue
        try:
            work(folder, rank, port)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    assert not any(codes), codes


if __name__ == "__main__":
    main()
