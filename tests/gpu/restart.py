"""What a restart takes: from the start of the process to the end of the first resumed step.

    python -m tests.gpu.restart [--out DIR] [--layers 16] [--hidden 2048] [--dir DIR]
        [--train '{"fp8": "rowwise"}'] [--only TEXT,...] [--seconds 75] [--compile]

The trainer makes a checkpoint and is killed, then starts again and again: eager; compiled, with
what the first attempt compiled (as on another node: the node's own cache is empty); and compiled
with neither. Before each start the system forgets what it has read of the checkpoint, as on another
node; a copy in /dev/shm that --train asks for stays, as on the same one. `startup.json` says where
the time went. A plain FSDP2 script of the tutorials' kind (`--plain`) loads the same checkpoint
with `dcp.load` and does the same. "torchrun" is what comes before the workers; compiling is a part
of the first step. Starts are begun until --seconds are over, and each is kept in DIR as it is
measured. Without a GPU all of it is tiny, and compiled only with --compile, since a processor's
compiler takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.results import Record, Results, about, about_lines, markdown_table

PARTS = (
    "torchrun", "import", "connect", "resume", "caches", "build", "load", "first_step", "total",
)  # fmt: skip
PLAIN, EAGER = "plain script, eager", "fsdpq, eager"
KEPT, COLD = "fsdpq, compiled code kept", "fsdpq, compiled anew"
STARTS = (KEPT, PLAIN, EAGER, COLD)
_PATIENCE_S = 300.0


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
    parser.add_argument("--only", default="", help="rows whose name holds one of these")
    parser.add_argument("--seconds", type=float, default=75, help="begin no start after that")
    parser.add_argument("--compile", action="store_true", help="compile without a GPU, too")
    parser.add_argument("--out", type=Path, help="a folder for the rows, as they are measured")
    args = parser.parse_args()
    if args.plain:
        plain(args.plain)
        return
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        results = Results(args.out, "restart", _markdown(args.train))
        measure(args, Path(folder), results)
        print(results.markdown)


def measure(args: argparse.Namespace, root: Path, results: Results) -> None:
    """Measure the starts, each from the checkpoint that the first attempt has made."""
    import torch

    began, large = time.monotonic(), torch.cuda.is_available()
    workers, compiled = torch.cuda.device_count() or 2, large or args.compile
    spec = _spec(args, workers, large=large)
    job = root / "train.json"
    trainer = ["-m", "orchestrator.trainer", str(job)]
    saves = {**spec["checkpoint"], "every_steps": 3, "mode": "sync"}
    job.write_text(json.dumps({**spec, "checkpoint": saves, "compile": compiled}))
    first = Start(trainer, root, attempt=1, workers=workers)
    how = "compiled" if compiled else "eager"
    results.add({"start": f"fsdpq, first of all, {how}", **first.until(root / "saves.jsonl")})
    starts = STARTS if compiled else (PLAIN, EAGER)
    wanted = [one for one in starts if any(text in one for text in args.only.split(","))]
    for attempt, name in enumerate(wanted, start=2):
        if time.monotonic() - began > args.seconds:
            print(f"left out, no time was left: {name}", flush=True)
            continue
        if name == COLD:
            shutil.rmtree(root / "compiled")
        job.write_text(json.dumps({**spec, "compile": name in (KEPT, COLD)}))
        program = ["-m", "tests.gpu.restart", "--plain", str(root)] if name == PLAIN else trainer
        forget(root / "checkpoints")
        start = Start(program, root, attempt=attempt, workers=workers)
        results.add({"start": name, **start.until(start.told)})


def forget(folder: Path) -> None:
    """Let the system drop the pages that it keeps of the files below ``folder``."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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
        "steps": 100_000,
        "global_batch": batch * workers,
        "micro_batch": batch,
        "precision": "bf16" if large else "fp32",
        "deterministic": False,
        "checkpoint": {"every_steps": 100_000},
        **json.loads(args.train),
    }


class Start:
    """An attempt under torchrun, with a compiler's cache of its own."""

    def __init__(self, program: list[str], root: Path, *, attempt: int, workers: int) -> None:
        self.told = root / f"attempts/{attempt}/startup.json"
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        self._log = root / f"log-{attempt}"
        self._began = time.time()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *torchrun, *program],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    "OMP_NUM_THREADS": "1",
                    "HF_HUB_OFFLINE": "1",
                    **os.environ,
                    "FSDPQ_RUN_DIR": str(root),
                    "FSDPQ_ATTEMPT": str(attempt),
                    "TORCHINDUCTOR_CACHE_DIR": str(root / f"inductor-{attempt}"),
                    "TRITON_CACHE_DIR": str(root / f"triton-{attempt}"),
                },
            )

    def until(self, file: Path) -> dict[str, float]:
        """Return what the start took once ``file`` is there; it is killed then."""
        deadline = time.monotonic() + _PATIENCE_S
        while not file.exists() and self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        found = file.exists()
        _kill(self._process)
        if not found:
            sys.exit(f"it came to nothing: {self._log.read_text()[-3000:]}")
        return self.parts()

    def parts(self) -> dict[str, float]:
        """Return the parts of the start, in seconds."""
        content = json.loads(self.told.read_text())
        before_s = content["started_at"] - self._began
        parts = {part: content.get(f"{part}_s", 0.0) for part in PARTS}
        return {**parts, "torchrun": before_s, "total": before_s + content["total_s"]}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill torchrun and return once its workers, which end with it, have given back the GPUs."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = children.read_text().split() if process.poll() is None else []
    process.kill()
    process.wait()
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.05)


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
        told = root / "attempts" / os.environ["FSDPQ_ATTEMPT"] / "startup.json"
        told.parent.mkdir(parents=True, exist_ok=True)
        told.with_suffix(".new").write_text(json.dumps(content))
        told.with_suffix(".new").replace(told)
    dist.barrier()
    dist.destroy_process_group()


# -- the end ---------------------------------------------------------------------------------------


def _markdown(train: str) -> Callable[[Sequence[Record]], str]:
    """Return what makes Markdown of the rows so far."""
    ran_on = about()

    def text(rows: Sequence[Record]) -> str:
        heads = ["seconds", *(part.replace("_", " ") for part in PARTS)]
        cells = [[row["start"], *(f"{row[part]:.2f}" for part in PARTS)] for row in rows]
        more = [] if train == "{}" else [f"With {train}.", ""]
        return "\n".join([*about_lines(ran_on), *more, *markdown_table(heads, cells)])

    return text


if __name__ == "__main__":
    main()
