"""What a machine with 4 or 8 GPUs can show: speed, scaling, bandwidth, and recovery on two hosts.

    python -m tests.gpu.eight [--gpus-per-host 4] [--debs DIR] [--out DIR] [--only PART,...]

Parts, each with rows of its own in DIR as soon as they are measured; one that fails does not stop
the others:

    speed    a Llama of 8 B on all GPUs of this machine, fully sharded and HSDP (two copies), its
             peak memory beside what `fsdpq plan` says; torchtitan, where it is installed
    scaling  the same on 1, 2, 4, ... GPUs
    bench    `fsdpq diagnose --bench` between two hosts under a real Slurm (tests/gpu/hosts.py)
    recover  HSDP over the two hosts: saves in the background, a preemption with notice, and then a
             host that loses its power; the run goes on with the other and the same global batch

The last two need root. Their model is half as deep, for three of its checkpoints must fit on the
disk. Without GPUs all of it is tiny, on two processes with gloo.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator.planner.families import shape_of
from orchestrator.planner.gpus import find
from orchestrator.planner.memory import memory
from orchestrator.planner.workload import workload
from tests.gpu import hosts, recovery
from tests.gpu.hosts import Machine
from tests.gpu.results import Record, Results, about, about_lines, markdown_table
from tests.slurm.cluster import Cluster

PARTS = ("speed", "scaling", "bench", "recover")
ON_CLUSTER = ("bench", "recover")
GRACE_S = 150  # a checkpoint of 48 GB on one disk
_SHOWN = ("step_s", "tokens_per_s_per_gpu", "mfu", "peak_gib", "reserved_gib", "warm_up_s")


def speed(args: argparse.Namespace, here: Machine, results: Results) -> None:
    """Measure the large model in each way on all GPUs."""
    how = "8B compile AC selective" if here.real else "tiny eager"
    second = f"fsdpq {how} HSDP" if here.real else "fsdpq tiny eager AC selective HSDP"
    names = [f"fsdpq {how}", second, f"torchtitan {how}"]
    if here.real:
        names += ["fsdpq 1.1B compile", "torchtitan 1.1B compile"]
    rated(args, results, "speed", names, ranks=here.gpus)


def scaling(args: argparse.Namespace, here: Machine, results: Results) -> None:
    """Measure on ever more GPUs; the large model needs two."""
    ranks = 1
    while ranks <= here.gpus:
        names = ["fsdpq 1.1B compile"] if here.real else ["fsdpq tiny eager"]
        if here.real and ranks > 1:
            names.append("fsdpq 8B compile AC selective")
        rated(args, results, "scaling", names, ranks=ranks)
        ranks *= 2


def rated(
    args: argparse.Namespace, results: Results, part: str, names: Sequence[str], *, ranks: int
) -> None:
    """Add rows of tests.gpu.speed, measured by ``ranks`` processes."""
    with tempfile.TemporaryDirectory() as folder:
        only = ",".join(f"={name}" for name in names)
        argv = [sys.executable, "-m", "tests.gpu.speed", f"--only={only}", f"--ranks={ranks}"]
        argv += [f"--out={folder}", f"--seconds={args.seconds}"]
        code = subprocess.run(argv, check=False, timeout=args.seconds * 2 + 240).returncode
        lines = (Path(folder) / "speed.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        figures = {key: row[key] for key in _SHOWN if row.get(key) is not None}
        trouble = {key: row[key] for key in ("left_out", "problem") if key in row}
        said = planned(row["name"], row["batch"], ranks) if figures else {}
        what = f"{row['name']}, {ranks} GPUs, batch {row['batch']}"
        results.add({"part": part, "what": what, **figures, **said, **trouble})
    if code:
        raise RuntimeError(f"tests.gpu.speed ended with {code}")


def planned(name: str, batch: int, ranks: int) -> Record:
    """Return what `fsdpq plan` says of a row's memory, in GiB; nothing of others' trainers."""
    import torch

    from tests.gpu.speed import rows, spec_of

    gpu = torch.cuda.is_available()
    every = rows(compiled=gpu, tiny=not gpu, ranks=ranks)
    row = next(row for row in every if row.name == name)
    if row.who != "fsdpq":
        return {}
    spec = spec_of(row, micro_batch=batch, ranks=ranks, on_gpu=gpu)
    shape = shape_of(spec.model.config or {})
    card = find(torch.cuda.get_device_name(0) if gpu else "H200")
    said = memory(shape, workload(spec, shape, world_size=ranks), card)
    gib = 2**30
    return {"planned_peak_gib": said.allocated / gib, "planned_reserved_gib": said.reserved / gib}


@contextmanager
def on_cluster(args: argparse.Namespace, here: Machine) -> Iterator[recovery.Scene]:
    """Open the cluster and a user of it; keep the logs at the end."""
    with Cluster(here.config) as cluster:
        user = hosts.alice(cluster, here)
        try:
            yield recovery.Scene(cluster, user, here, args)
        finally:
            hosts.pack(args.out, "eight", user)
            user.close()


ALONE: dict[str, Callable[[argparse.Namespace, Machine, Results], None]] = {
    "speed": speed,
    "scaling": scaling,
}


def attempt(part: str, results: Results, measure: Callable[[], None]) -> bool:
    """Measure a part; return whether it came to its end."""
    try:
        measure()
    except Exception as problem:  # whatever it is, the next part is measured all the same
        traceback.print_exc()
        lines = str(problem).splitlines() or [""]
        results.add({"part": part, "what": "failed", "problem": f"{lines[0][:300]}"})
        return False
    return True


def markdown(command: str) -> Callable[[Sequence[Record]], str]:
    """Return what makes Markdown of the rows so far."""
    ran_on = {**about(), "driver": hosts.driver()}

    def text(rows: Sequence[Record]) -> str:
        cells = [[row["part"], row["what"], _told(row)] for row in rows]
        table = markdown_table(("part", "what", "figures"), cells)
        return "\n".join([f"`{command}`", "", *about_lines(ran_on), *table])

    return text


def _told(row: Record) -> str:
    rest = {key: value for key, value in row.items() if key not in ("part", "what")}
    return ", ".join(
        f"{key} {value:,.3f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in rest.items()
    )


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus-per-host", type=int, help="of two hosts; all, if left out")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas")
    parser.add_argument("--seconds", type=float, default=150, help="begin no row after that")
    parser.add_argument("--layers", type=int, default=16, help="of the model of `recover`")
    parser.add_argument("--patience", type=float, default=300, help="seconds to wait for anything")
    parser.add_argument("--debs", type=Path, help="unpack Slurm's packages from this folder")
    parser.add_argument("--out", type=Path, help="a folder for rows and logs")
    args = parser.parse_args()
    if wrong := set(args.only.split(",")) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(wrong))}; there are {', '.join(PARTS)}")
    return args


def main() -> None:
    """Measure part after part; exit with the number of those that failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is closed
    args = arguments()
    parts = args.only.split(",")
    if set(parts) & set(ON_CLUSTER):
        hosts.prepare(args.debs)
    each = args.gpus_per_host or max(1, len(hosts.device_files()) // 2)
    here = replace(hosts.machine(2, each), grace_s=GRACE_S)
    command = f"python -m tests.gpu.eight {shlex.join(sys.argv[1:])}"
    results = Results(args.out, "eight", markdown(command))
    held = []
    if chosen := [part for part in ON_CLUSTER if part in parts]:
        # First: they show what nothing else does.
        held.append(attempt("cluster", results, lambda: together(args, here, results, chosen)))
    for part in ALONE:
        if part in parts:
            held.append(attempt(part, results, lambda p=part: ALONE[p](args, here, results)))  # type: ignore[misc]
    print(results.markdown)
    sys.exit(held.count(False))


def together(
    args: argparse.Namespace, here: Machine, results: Results, parts: Sequence[str]
) -> None:
    """Measure the parts that need the cluster, on one.

    Raises:
        RuntimeError: One of them failed.
    """
    with on_cluster(args, here) as scene:
        held = [
            attempt(part, results, lambda p=part: recovery.PARTS[p](scene, results))  # type: ignore[misc]
            for part in parts
        ]
    if not all(held):
        raise RuntimeError("see above")


if __name__ == "__main__":
    main()
