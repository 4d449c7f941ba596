"""Train on all GPUs of this machine, be preempted twice, and compare with a run left alone.

    python -m tests.gpu.preempted [--layers 16] [--hidden 2048] [--steps 120]

Prints a table for RESULTS.md: hardware, versions, step time, what the notices cost, and whether
loss and gradient norm of every step are the same to the last bit. On a machine without a GPU it
runs two workers with gloo, which is how the script itself is tried.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

FSDPQ = [sys.executable, "-m", "orchestrator"]


def job(args: argparse.Namespace, gpus: int) -> dict[str, Any]:
    """Return the job file: a Llama of the given size on Python's own standard library."""
    config = {
        "model_type": "llama",
        "vocab_size": args.vocab,
        "hidden_size": args.hidden,
        "intermediate_size": args.hidden * 11 // 4,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.hidden // 64,
        "num_key_value_heads": args.hidden // 256 or 1,
        "max_position_embeddings": args.seq_len,
        "tie_word_embeddings": True,
    }
    return {
        "site": "local",
        "gpus_per_node": gpus,
        "train": {
            "model": {"config": config},
            "data": {
                "text_files": [f"{sysconfig.get_path('stdlib')}/*.py"],
                "seq_len": args.seq_len,
            },
            "steps": args.steps,
            "global_batch": args.batch * gpus,
            "micro_batch": args.batch,
            "precision": "bf16" if torch.cuda.is_available() else "fp32",
            "checkpoint": {"every_steps": 100000},
        },
    }


def fsdpq(runs: Path, *args: str) -> Any:
    """Run a command with --json and return what it prints."""
    argv = [*FSDPQ, *args, "--runs", str(runs), "--json"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"fsdpq {args} exited {done.returncode}: {done.stderr}{_logs(runs)}")
    return json.loads(done.stdout)


def _logs(runs: Path) -> str:
    return "".join(path.read_text()[-6000:] for path in sorted(runs.glob("*/batch.log")))


def wait(runs: Path, run: str, done: Any, *, timeout_s: float = 400) -> dict[str, Any]:
    """Return the status of a run once ``done`` says so."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        status: dict[str, Any] = fsdpq(runs, "status", run)
        if done(status):
            return status
        if status["state"] in ("failed", "cancelled"):
            break
        time.sleep(0.5)
    sys.exit(f"{run}: {status['state']}, {status['next']}\n{_logs(runs)}")


def metrics(runs: Path, run: str) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics."""
    lines = (runs / run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def curve(runs: Path, run: str) -> list[tuple[Any, ...]]:
    """Return what must not differ by a bit."""
    keys = ("step", "loss", "grad_norm", "lr", "samples")
    return [tuple(str(line[key]) for key in keys) for line in metrics(runs, run)]


def gpu_names() -> str:
    """Return the GPUs of this machine."""
    if not torch.cuda.is_available():
        return "no GPU (gloo)"
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def nccl_version() -> str:
    """Return NCCL's version, or a dash."""
    if not torch.cuda.is_available():
        return "-"
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(str(part) for part in version)


def measure(args: argparse.Namespace, runs: Path) -> dict[str, Any]:
    """Run both and return the figures."""
    gpus = torch.cuda.device_count() or 2
    path = runs / "job.yaml"
    path.write_text(json.dumps(job(args, gpus)))  # JSON is YAML
    fsdpq(runs, "submit", str(path), "--set", "name=straight")
    wait(runs, "straight", lambda s: s["state"] == "finished")
    fsdpq(runs, "submit", str(path), "--set", "name=interrupted")
    drills = []
    for part in (1, 2):
        goal = args.steps * part // 3
        wait(runs, "interrupted", lambda s, goal=goal: (s["step"] or 0) >= goal)
        drills.append(fsdpq(runs, "drill", "interrupted"))
    status = wait(runs, "interrupted", lambda s: s["state"] == "finished")
    one, other = curve(runs, "straight"), curve(runs, "interrupted")
    lines = metrics(runs, "straight")[5:]
    newest = max((runs / "interrupted" / "checkpoints").glob("step-*"), key=lambda p: p.name)
    size = sum(file.stat().st_size for file in newest.iterdir())
    return {
        "gpus": gpu_names(),
        "torch": torch.__version__,
        "nccl": nccl_version(),
        "transformers": transformers.__version__,
        "step_s": median(line["step_s"] for line in lines),
        "tokens_per_s_per_gpu": median(line["tokens_per_s"] for line in lines) / gpus,
        "checkpoint_gib": size / 2**30,
        "attempts": len(status["attempts"]),
        "steps_lost": sum(row["steps_lost"] for row in status["attempts"]),
        "stop_s": [drill["stop_s"] for drill in drills],
        "down_s": [drill["down_s"] for drill in drills],
        "steps": len(one),
        "steps_that_differ": sum(a != b for a, b in zip(one, other, strict=True)),
        "final_loss": [one[-1][1], other[-1][1]],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--runs", type=Path, help="keep the run directories here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = args.runs or Path(folder)
        runs.mkdir(parents=True, exist_ok=True)
        found = measure(args, runs)
        for key, value in {**vars(args), **found}.items():
            print(f"| {key} | {value} |")
        if args.out:
            args.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
