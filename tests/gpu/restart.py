"""What a restart takes: from the start of the process to the end of the first resumed step.

    python -m tests.gpu.restart [--layers 16] [--hidden 2048] [--train '{"steps": 9}'] [--dir DIR]

The trainer makes a few steps and a checkpoint, then starts again: its own `startup.json` says
where the time went. A plain FSDP2 script of the tutorials' kind (`--plain`) loads the same
checkpoint with `dcp.load` and does the same. "torchrun" is what comes before the workers. Without a
GPU both are tiny.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

PARTS = ("torchrun", "import", "connect", "resume", "build", "load", "first_step", "total")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--seq-len", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--train", default="{}", help="more of the trainer's options, as JSON")
    parser.add_argument(
        "--dir", type=Path, help="where the run lies; a temporary folder, if left out"
    )
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    if args.plain:
        plain(args.plain)
        return
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        _print(measure(args, Path(folder)), args)


def measure(args: argparse.Namespace, root: Path) -> dict[str, dict[str, float]]:
    """Return the parts of each start, in seconds."""
    import torch

    workers = torch.cuda.device_count() or 2
    spec = _spec(args, workers, large=torch.cuda.is_available())
    trainer = ["-m", "orchestrator.trainer", str(root / "train.json")]
    (root / "train.json").write_text(json.dumps(spec))
    _launch(trainer, root, attempt=1, workers=workers)
    (root / "finished.json").unlink()  # it is to go on
    (root / "train.json").write_text(json.dumps({**spec, "steps": spec["steps"] + 2}))
    began = _launch(trainer, root, attempt=2, workers=workers)
    found = {"fsdpq": _parts(root / "attempts/2/startup.json", began)}
    script = ["-m", "tests.gpu.restart", "--plain", str(root)]
    began = _launch(script, root, attempt=3, workers=workers)
    return {**found, "plain script": _parts(root / "plain.json", began)}


def _spec(args: argparse.Namespace, workers: int, *, large: bool) -> dict[str, Any]:
    hidden = args.hidden or (2048 if large else 64)
    batch, seq_len = args.batch or (4 if large else 1), args.seq_len or (4096 if large else 32)
    return {
        "model": {
            "config": {
                "model_type": "llama",
                "vocab_size": 32000 if large else 256,
                "hidden_size": hidden,
                "intermediate_size": hidden * 4,
                "num_hidden_layers": args.layers or (16 if large else 2),
                "num_attention_heads": max(1, hidden // 64),
                "num_key_value_heads": max(1, hidden // 256),
                "max_position_embeddings": seq_len,
            }
        },
        "data": {"text_files": [f"{sysconfig.get_path('stdlib')}/*.py"], "seq_len": seq_len},
        "steps": 3,
        "global_batch": batch * workers,
        "micro_batch": batch,
        "precision": "bf16" if large else "fp32",
        "deterministic": False,
        "checkpoint": {"every_steps": 100_000},
        **json.loads(args.train),
    }


def _launch(program: list[str], root: Path, *, attempt: int, workers: int) -> float:
    """Run ``program`` under torchrun to its end; return when it was started."""
    began = time.time()
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    done = subprocess.run(
        [sys.executable, *torchrun, *program],
        check=False,
        env={
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **os.environ,
            "FSDPQ_RUN_DIR": str(root),
            "FSDPQ_ATTEMPT": str(attempt),
        },
    )
    if done.returncode:
        sys.exit(f"attempt {attempt} ended with {done.returncode}")
    return began


def _parts(path: Path, began: float) -> dict[str, float]:
    content = json.loads(path.read_text())
    before_s = content["started_at"] - began
    parts = {part: content.get(f"{part}_s", 0.0) for part in PARTS}
    return {**parts, "torchrun": before_s, "total": before_s + content["total_s"]}


# -- the plain script ------------------------------------------------------------------------------


def plain(root: Path) -> None:
    """Load the checkpoint of the run in ``root`` and take a step, as the tutorials do."""
    from orchestrator.trainer.startup import Startup, process_started_at

    startup = Startup(process_started_at())
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import AutoConfig, AutoModelForCausalLM

    startup.mark("import")
    spec = json.loads((root / "train.json").read_text())
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    dist.init_process_group(backend, device_id=device if gpu else None)
    dist.barrier()
    startup.mark("connect")
    config = AutoConfig.for_model(**spec["model"]["config"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if gpu else MixedPrecisionPolicy()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for block in model.model.layers:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device=device)
    for module in model.modules():  # its buffers are in no checkpoint
        if type(module).__name__.endswith("RotaryEmbedding"):
            model._init_weights(module)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    startup.mark("build")
    weights, optim = get_state_dict(model, optimizer)
    (path,) = sorted((root / "checkpoints").glob("step-*"))[-1:]
    load({"app": {"model": weights, "optim": {"state": optim["state"]}}}, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=optim)
    startup.mark("load")
    shape = (spec["micro_batch"], spec["data"]["seq_len"])
    tokens = torch.randint(0, 250, shape, device=device)
    model(input_ids=tokens, labels=tokens).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if gpu:
        torch.cuda.synchronize()
    startup.mark("first_step")
    if dist.get_rank() == 0:
        total_s = sum(startup.parts.values())
        content = {"started_at": startup.started_at, **startup.parts, "total_s": total_s}
        (root / "plain.json").write_text(json.dumps(content))
    dist.barrier()
    dist.destroy_process_group()


# -- the end ---------------------------------------------------------------------------------------


def _print(found: dict[str, dict[str, float]], args: argparse.Namespace) -> None:
    import torch
    import transformers

    from tests.gpu.preempted import gpu_names

    about = {
        "gpus": gpu_names(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "train": args.train,
    }
    for key, value in about.items():
        print(f"| {key} | {value} |")
    print("| seconds | " + " | ".join(found) + " |")
    print("|---" * (1 + len(found)) + "|")
    for part in PARTS:
        row = " | ".join(f"{parts[part]:.2f}" for parts in found.values())
        print(f"| {part.replace('_', ' ')} | {row} |")
    if args.out:
        args.out.write_text(json.dumps({**about, "starts": found}, indent=2))


if __name__ == "__main__":
    main()
