"""The same run on 1, 2 and 4 ranks and as HSDP: same first weights, same samples, same losses.

The ranks are forks of one process that has imported everything, since imports take most of the
time of such a small run.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "two": (2, {}),
    "four": (4, {}),
    "hsdp": (4, {"mesh": {"replicate": 2}}),
    "kept": (2, {"reshard_after_forward": False, "accumulate": "unsharded"}),
}

PROGRAM = """
import hashlib, json, os, sys
from pathlib import Path

import torch
import torch.distributed as dist

from orchestrator.runtime.environment import read_environment
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer import training as parts
from orchestrator.trainer.corpus import open_corpus
from orchestrator.trainer.world import connect, fix_arithmetic, leave


def work(case, rank, world_size, spec, port):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )
    fix_arithmetic(spec)
    env = read_environment(os.environ)
    corpus = open_corpus(spec.data.text_files, seq_len=spec.data.seq_len)
    world = connect(env, spec)
    training = parts.build(spec, world, corpus, fresh=True)
    digest, local, total = hashlib.sha256(), 0, 0
    for _, parameter in sorted(training.model.named_parameters()):
        local += parameter.to_local().numel()
        total += parameter.numel()
        digest.update(parameter.full_tensor().detach().numpy().tobytes())
    results = [parts.train_step(training) for _ in range(3)]
    if rank == 0:
        found = {
            "weights": digest.hexdigest(), "share": local / total,
            "loss": [r.loss for r in results], "grad_norm": [r.grad_norm for r in results],
            "position": training.state.position,
        }
        Path(case).write_text(json.dumps(found))
    leave(world)


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


cases = json.loads(sys.argv[1])
for case, (world_size, config) in cases.items():
    spec, port, pids = TrainSpec.model_validate(config), free_port(), []
    for rank in range(world_size):
        pid = os.fork()
        if pid == 0:
            try:
                work(case, rank, world_size, spec, port)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            sys.stdout.flush()
            os._exit(0)
        pids.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    assert not any(codes), (case, codes)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "text").write_text("".join(f"{n} cubed is {n**3}.\n" for n in range(100)))
    configs = {name: (size, config(folder, changes)) for name, (size, changes) in CASES.items()}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(configs)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",  # forks cannot share a GPU
            "FSDPQ_RUN_DIR": str(folder),
            "FSDPQ_ATTEMPT": "1",
        },
        check=True,
        timeout=240,
    )
    return {name: json.loads((folder / name).read_text()) for name in CASES}


def config(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {
            "config": {
                "model_type": "llama",
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "vocab_size": 260,
            }
        },
        "data": {"text_files": [str(folder / "text")], "seq_len": 16},
        "steps": 10,
        "global_batch": 8,
        "micro_batch": 1,
        "precision": "fp32",
        "timeouts_s": {"init": 60},
        **changes,
    }


@pytest.mark.parametrize("name", CASES)
def test_same_run(results: dict[str, dict[str, Any]], name: str) -> None:
    found, one = results[name], results["one"]
    assert found["weights"] == one["weights"]  # bit for bit
    assert found["position"] == one["position"] == 24
    for key in ("loss", "grad_norm"):
        for a, b in zip(found[key], one[key], strict=True):
            assert math.isclose(a, b, rel_tol=1e-5), key


@pytest.mark.parametrize(
    ("name", "share"), [("one", 1), ("two", 1 / 2), ("four", 1 / 4), ("hsdp", 1 / 2)]
)
def test_memory_is_shared_out(results: dict[str, dict[str, Any]], name: str, share: float) -> None:
    assert results[name]["share"] == pytest.approx(share, rel=0.02)
