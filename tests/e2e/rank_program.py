"""What `ranks.py` starts: `python -m tests.e2e.rank_program CASES.JSON`.

Each case is forked into its ranks and takes three steps; its rank 0 writes what came of it into a
file of the case's name.
"""

import hashlib
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from orchestrator.runtime.environment import read_environment
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer import training as parts
from orchestrator.trainer.corpus import open_corpus
from orchestrator.trainer.evaluation import Evaluator
from orchestrator.trainer.world import connect, fix_arithmetic, leave

Poison = list[int] | None  # [rank, step]: there that rank's loss is no number


def work(case: str, spec: TrainSpec, poison: Poison, *, rank: int, world_size: int) -> None:
    """Train as one of the ranks."""
    fix_arithmetic(spec)
    env = read_environment(os.environ)
    corpus = open_corpus(spec.data.text_files, seq_len=spec.data.seq_len)
    world = connect(env, spec)
    training = parts.build(spec, world, corpus, fresh=True)
    local, total = 0, 0
    for parameter in training.model.parameters():
        local += parameter.to_local().numel()
        total += parameter.numel()
    weights = digest(training)
    seen: list[Any] = []
    results = []
    held_out = open_corpus(spec.eval.text_files, seq_len=spec.data.seq_len) if spec.eval else None
    evaluator = Evaluator.of(training, held_out)
    for _ in range(3):
        results.append(step(training, poison, rank))
        if evaluator is not None and evaluator.due():
            seen.append(evaluator.measure(stop=lambda: False))
    found = {
        "weights": weights,
        "after": digest(training),
        "share": local / total,
        "loss": [r.loss for r in results],
        "grad_norm": [r.grad_norm for r in results],
        "position": training.state.position,
        "skipped": training.state.skipped,
        "eval": seen,
        "names": sorted(training.model.state_dict()),
    }
    if rank == 0:
        Path(case).write_text(json.dumps(found))
    leave(world)


def digest(training: parts.Training) -> str:
    """Return what stands for all bits of all weights. Collective."""
    found = hashlib.sha256()
    for _, parameter in sorted(training.model.named_parameters()):
        found.update(parameter.full_tensor().detach().numpy().tobytes())
    return found.hexdigest()


def step(training: parts.Training, poison: Poison, rank: int) -> parts.Result:
    """Take a step."""
    if poison != [rank, training.state.step + 1]:
        return parts.train_step(training)
    hook = training.model.register_forward_hook(lambda model, args, loss: loss * float("nan"))
    result = parts.train_step(training)
    hook.remove()
    return result


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def fork(case: str, config: dict[str, Any], *, rank: int, world_size: int, port: int) -> int:
    """Start a rank; return its process id."""
    if pid := os.fork():
        return pid
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    try:
        poison = config.pop("poison", None)
        work(case, TrainSpec.model_validate(config), poison, rank=rank, world_size=world_size)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Run the cases, one after the other."""
    for case, (world_size, config) in json.loads(Path(sys.argv[1]).read_text()).items():
        port = free_port()
        pids = [
            fork(case, config, rank=rank, world_size=world_size, port=port)
            for rank in range(world_size)
        ]
        codes = [os.waitpid(pid, 0)[1] for pid in pids]
        assert not any(codes), (case, codes)


if __name__ == "__main__":
    main()
