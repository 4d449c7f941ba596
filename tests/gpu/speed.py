"""Tokens per second and GPU, MFU and memory, beside what others do with the same model.

    python -m tests.gpu.speed [--out DIR] [--only TEXT,...] [--seconds 80]
        [--batch 8] [--batch-8b 2]

One run on all GPUs of this machine: every row has the same shape, batch, sequence and precision,
one after the other. Prints a Markdown table, and keeps each row in DIR as it is measured. Rows are
begun until --seconds are over, the most telling ones first. Without a GPU it trains a tiny model on
two workers with gloo, which is how the script itself is tried (--compile compiles there, too).

What a row is of: `fsdpq` is this trainer's own build and train_step, with the vote after it;
`torchtitan` is torchtitan's own Trainer, in processes of its own (tests/gpu/titan.py);
`accelerate` is Hugging Face's FSDP2; `plain` is tests/gpu/rivals.py, a loop as torchtitan's that
needs no other package. FP8 rows need torchao. What is not installed is named under the table.
"""

import argparse
import gc
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._inductor import config as inductor
from torch.distributed.device_mesh import DeviceMesh

from orchestrator.errors import FsdpqError
from orchestrator.runtime.environment import read_environment
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer import training as parts
from orchestrator.trainer.corpus import Corpus, open_corpus
from orchestrator.trainer.model import build_on_meta
from orchestrator.trainer.sampler import Sampler, rank_positions
from orchestrator.trainer.utilization import flops_per_token, peak_flops
from orchestrator.trainer.world import World, connect
from tests.gpu import titan
from tests.gpu.results import Record, Results, about
from tests.gpu.rivals import Options, Shape, accelerated, plain
from tests.gpu.speed_table import markdown

BIG = Shape(layers=32, hidden=4096, inner=14336, heads=32, kv_heads=8, vocab=128256, seq_len=4096)
MIDDLE = Shape(layers=16, hidden=2048, inner=8192, heads=32, kv_heads=8, vocab=32000, seq_len=4096)
TINY = Shape(layers=2, hidden=64, inner=128, heads=4, kv_heads=2, vocab=512, seq_len=64)
WARM_UP, STEPS = 3, 8


WHO = ("fsdpq", "torchtitan", "accelerate", "plain")


@dataclass(frozen=True)
class Row:
    """One thing to measure."""

    who: str
    size: str
    options: Options
    label: str = ""
    changes: tuple[tuple[str, Any], ...] = ()  # other keys of train:

    @property
    def name(self) -> str:
        """What stands in the table."""
        words = [self.who, self.size, "compile" if self.options.compile else "eager"]
        words += [f"AC {self.options.recompute}"] if self.options.recompute != "off" else []
        words += [f"FP8 {self.options.fp8}"] if self.options.fp8 != "off" else []
        return " ".join([*words, self.label]).rstrip()


def rows(*, compiled: bool, tiny: bool, ranks: int) -> Iterator[Row]:
    """Yield what to measure, the most telling first."""
    fast, eager, some = Options(compiled), Options(), Options(compiled, "selective")
    fp8 = [Options(True, fp8="tensorwise"), Options(True, fp8="rowwise")]
    size = "tiny" if tiny else "1.1B"
    yield from (Row(who, size, fast) for who in WHO[:3])
    if not tiny:
        yield from (Row(who, "8B", some) for who in WHO[:2])
    yield from (Row(who, size, how) for how in fp8 for who in WHO[:2])
    if not tiny:
        # accelerate knows no other recomputing.
        yield from (Row(who, "8B", Options(True, "full")) for who in WHO[:3])
        yield from (Row(who, "8B", Options(True, "selective", "tensorwise")) for who in WHO[:2])
    if compiled:
        yield from (Row(who, size, eager) for who in WHO)
    yield Row("plain", size, fast)
    yield Row("fsdpq", size, some)
    if ranks >= 4 or tiny:
        hsdp = ("mesh", {"replicate": 2, "shard": ranks // 2})
        yield Row("fsdpq", size if tiny else "8B", some, "HSDP", (hsdp,))
    yield Row("fsdpq", size, Options(compiled, "full"))
    for label, key, value in (
        ("whole logits", "loss_chunks", 1),
        ("deterministic", "deterministic", True),
        ("prefetch 2", "prefetch", 2),
        ("blocks kept whole", "reshard_after_forward", False),
    ):
        yield Row("fsdpq", size, fast, label, ((key, value),))


def why_not(row: Row) -> str:
    """Return why a row cannot be measured here; empty if it can."""
    if row.options.fp8 != "off" and not torch.cuda.is_available():
        return "FP8 needs a GPU"
    if row.options.fp8 != "off" and not util.find_spec("torchao"):
        return "torchao is not installed"
    if row.who == "torchtitan":
        return titan.why_not()
    if row.who == "accelerate" and not util.find_spec("accelerate"):
        return "accelerate is not installed"
    if row.who == "accelerate" and not torch.cuda.is_available():
        return "accelerate shards on GPUs alone"
    return ""


def shape_of(row: Row) -> Shape:
    """Return the measures of the row's model."""
    return {"8B": BIG, "1.1B": MIDDLE, "tiny": TINY}[row.size]


def spec_of(row: Row, *, micro_batch: int, ranks: int, on_gpu: bool) -> TrainSpec:
    """Return the row's job for fsdpq's trainer."""
    shape, options = shape_of(row), row.options
    return TrainSpec.model_validate(
        {
            "model": {"config": shape.config()},
            "data": {
                "text_files": [f"{sysconfig.get_path('stdlib')}/*.py"],
                "seq_len": shape.seq_len,
            },
            "steps": 1000,
            "global_batch": micro_batch * ranks,
            "micro_batch": micro_batch,
            "precision": "bf16" if on_gpu else "fp32",
            "compile": options.compile,
            "activation_checkpointing": options.recompute,
            "fp8": options.fp8,
            "deterministic": False,
            **dict(row.changes),
        }
    )


def fsdpq_step(spec: TrainSpec, world: World, corpus: Corpus) -> Callable[[], float]:
    """Return a step of fsdpq's trainer and the vote that follows it."""
    training = parts.build(spec, world, corpus, fresh=True)
    vote = torch.zeros(1)

    def step() -> float:
        loss = parts.train_step(training).loss
        dist.all_reduce(vote, group=world.checkpoint_group)
        return loss

    return step


def rival_step(
    row: Row, spec: TrainSpec, world: World, corpus: Corpus, mesh: DeviceMesh
) -> Callable[[], float]:
    """Return a step of another loop, on the same samples."""
    if row.who == "plain":
        take = plain(shape_of(row), row.options, mesh, world.device)
    else:
        take = accelerated(shape_of(row), row.options, world.device)
    sampler = Sampler(corpus.num_samples, spec.seed)
    done = 0

    def step() -> float:
        nonlocal done
        (positions,) = rank_positions(
            done * spec.global_batch,
            global_batch=spec.global_batch,
            micro_batch=spec.micro_batch,
            rank=world.rank,
            world_size=world.size,
        )
        windows = corpus.windows(sampler.ids(positions))
        done += 1
        loss = take(torch.from_numpy(windows).to(world.device, non_blocking=True))
        if done < WARM_UP + STEPS:  # nobody looks at it, so nobody waits for it
            return 0.0
        dist.all_reduce(loss)
        return float(loss) / world.size

    return step


def measure(row: Row, world: World, *, micro_batch: int) -> dict[str, Any]:
    """Return what the row gave. Collective."""
    on_gpu = world.device.type == "cuda"
    spec = spec_of(row, micro_batch=micro_batch, ranks=world.size, on_gpu=on_gpu)
    if row.who == "torchtitan":
        return rated(titan_figures(row, world, micro_batch=micro_batch), spec, micro_batch)
    torch.use_deterministic_algorithms(spec.deterministic)
    corpus = open_corpus(spec.data.text_files, seq_len=spec.data.seq_len)
    if row.who == "fsdpq":
        step = fsdpq_step(spec, world, corpus)
    else:
        step = rival_step(row, spec, world, corpus, world.mesh)
    began = time.perf_counter()
    for _ in range(WARM_UP):
        step()
    wait(world)
    warm = time.perf_counter()
    for _ in range(STEPS):
        loss = step()
    wait(world)
    found = {
        "step_s": (time.perf_counter() - warm) / STEPS,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30 if on_gpu else None,
        "warm_up_s": warm - began,
        "loss": loss,
    }
    return rated(found, spec, micro_batch)


def rated(found: Record, spec: TrainSpec, micro_batch: int) -> Record:
    """Add to a row's seconds what comes of them."""
    each = micro_batch * spec.data.seq_len / found["step_s"]
    per_token = flops_per_token(build_on_meta(spec.model), seq_len=spec.data.seq_len)
    peak = peak_flops(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return {
        **found,
        "tokens_per_s_per_gpu": each,
        "tflops": each * per_token / 1e12,
        "mfu": each * per_token / peak if peak else None,
    }


def titan_figures(row: Row, world: World, *, micro_batch: int) -> Record:
    """Return torchtitan's figures, which rank 0 has measured while the others wait. Collective.

    Raises:
        RuntimeError: It came to nothing.
    """
    box: list[Record] = [{}]
    if world.rank == 0:
        try:
            box[0] = titan.run(
                vars(shape_of(row)),
                ranks=world.size,
                batch=micro_batch,
                compiled=row.options.compile,
                recompute=row.options.recompute,
                fp8=row.options.fp8,
            )
        except (RuntimeError, OSError, ValueError) as problem:
            box[0] = {"problem": str(problem)}
    dist.broadcast_object_list(box, group=world.checkpoint_group)
    if "problem" in box[0]:
        raise RuntimeError(box[0]["problem"])
    return box[0]


def wait(world: World) -> None:
    """Return when all ranks are done with all that they were told to do."""
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier(world.checkpoint_group)


def clean() -> None:
    """Leave nothing of a row behind."""
    torch._dynamo.reset()
    if hasattr(inductor, "deterministic"):
        inductor.deterministic = False
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def matrix_rate(device: torch.device) -> float:
    """Return the operations a second of a large bf16 product, the best of several sizes."""
    best = 0.0
    for size in (4096, 8192, 16384) if device.type == "cuda" else (256,):
        a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
        for _ in range(3):
            a @ b
        torch.cuda.synchronize() if device.type == "cuda" else None
        began = time.perf_counter()
        for _ in range(10):
            a @ b
        torch.cuda.synchronize() if device.type == "cuda" else None
        best = max(best, 20 * size**3 / (time.perf_counter() - began))
    return best


def worker(args: argparse.Namespace) -> None:
    """Measure row after row, as one of the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(FSDPQ_RUN_DIR=folder, FSDPQ_ATTEMPT="1")
        env = read_environment(os.environ)
    tiny = not torch.cuda.is_available()
    any_row = Row("fsdpq", "tiny" if tiny else "1.1B", Options())
    spec = spec_of(any_row, micro_batch=1, ranks=env.world_size, on_gpu=not tiny)
    world = connect(env, spec)
    torch.set_num_threads(1)
    began = time.monotonic()
    rate = matrix_rate(world.device)
    ran_on = about()
    results = Results(args.out if world.rank == 0 else None, "speed", markdown(ran_on, rate))
    for row in rows(compiled=args.compile or not tiny, tiny=tiny, ranks=world.size):
        if not any(wanted(row.name, text) for text in args.only.split(",")):
            continue
        batch = args.batch_8b if row.size == "8B" else args.batch
        late = torch.tensor(int(time.monotonic() - began > args.seconds))
        dist.broadcast(late, 0, group=world.checkpoint_group)  # one clock for all ranks
        reason = why_not(row) or ("no time was left" if late.item() else "")
        found = {"left_out": reason} if reason else attempt(row, world, batch)
        if world.rank == 0:
            results.add({"name": row.name, "batch": batch, **found})
    if world.rank == 0:
        print(results.markdown)
    dist.barrier(world.checkpoint_group)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def wanted(name: str, text: str) -> bool:
    """Return whether ``text`` asks for a row: by a part of its name, or by "=" and all of it."""
    return name == text[1:] if text.startswith("=") else text in name


def attempt(row: Row, world: World, batch: int) -> dict[str, Any]:
    """Return what the row gave, or why it gave nothing: the next one is measured all the same."""
    clean()
    try:
        return measure(row, world, micro_batch=batch)
    except (
        RuntimeError,
        ImportError,
        TypeError,
        ValueError,
        AttributeError,
        FsdpqError,
    ) as problem:
        return {"problem": f"{type(problem).__name__}: {str(problem).splitlines()[0][:160]}"}
    finally:
        clean()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="rows whose name holds, or =is, one of these")
    parser.add_argument("--ranks", type=int, help="so many, instead of one for each GPU")
    parser.add_argument("--seconds", type=float, default=80, help="begin no row after that")
    parser.add_argument("--batch", type=int, default=8, help="sequences a GPU, 1.1B and tiny")
    parser.add_argument("--batch-8b", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="compile without a GPU, too")
    parser.add_argument("--out", type=Path, help="a folder for the rows, as they are measured")
    args = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        worker(args)
    ranks = args.ranks or torch.cuda.device_count() or 2
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    argv = [*launch, f"--nproc-per-node={ranks}", "-m", "tests.gpu.speed", *sys.argv[1:]]
    sys.exit(subprocess.run(argv, check=False).returncode)


if __name__ == "__main__":
    main()
