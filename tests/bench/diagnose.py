"""`python -m tests.bench.diagnose`: `fsdpq diagnose` on large logs, and on logs that say much.

Three kinds of a gigabyte, each in a process of its own, whose memory is its own: what a job of many
ranks leaves (steps, and NCCL's start in between), nothing but lines of NCCL's, and one line without
an end. Four kinds of 16 files of a megabyte in which every line is to be looked into.
"""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.fabric.examine import ends, examine
from orchestrator.fabric.sources import of_paths

GIGABYTE, MEGABYTE = 10**9, 10**6
RANKS = 64
_HCAS = " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(8))


def start(rank: int) -> list[str]:
    """Return what NCCL says at the start of a rank."""
    who = f"node-{rank // 8}:{1000 + rank}:{2000 + rank} [{rank % 8}] NCCL INFO"
    return [
        f"{who} NET/IB : Using {_HCAS} [RO]; OOB eth0:10.0.0.{rank // 8}<0>",
        f"{who} Using network IB",
        f"{who} comm 0x7f rank {rank} nRanks {RANKS} nNodes {RANKS // 8} localRanks 8 localRank 0",
        *(
            f"{who} Channel {n:02}/0 : {rank}[0] -> {(rank + 1) % RANKS}[0] [send] via"
            f" NET/IB/{n % 8}/GDRDMA"
            for n in range(16)
        ),
    ]


def mixed(rng: random.Random) -> list[str]:
    """Return the lines of a training job: steps of all ranks, now and then something of NCCL's."""
    lines = []
    for step in range(2000):
        for rank in range(RANKS):
            lines.append(
                f"[default{rank % 8}]:step {step} loss {rng.random():.4f} grad_norm 0.91 lr 3e-4"
            )
        if step % 50 == 0:
            lines.append("node-3:1024:2024 [0] NCCL INFO Channel 00/1 : 24[0] -> 25[1] via P2P/IPC")
    return lines


def nccl(rng: random.Random) -> list[str]:
    """Return NCCL's own lines."""
    lines = []
    for rank in range(RANKS):
        lines += start(rank)
        who = f"node-{rank // 8}:{1000 + rank}:{2000 + rank} [{rank % 8}] NCCL INFO"
        for n in range(512):
            lines.append(f"{who} Channel {n:02}/0 : {rank}[0] -> {rank + 1}[1] via P2P/CUMEM/read")
    return lines


def endless(rng: random.Random) -> list[str]:
    """Return a progress bar without a newline."""
    return ["\r 45%|####      | 450/1000 [00:10<00:12, 44.9it/s]" * 20_000]


def errors(rng: random.Random) -> list[str]:
    """Return errors of NCCL's that are known, of very many ranks."""
    return [
        f"node-{n % 64}:{1000 + n % 512}:2000 [0] NCCL WARN NET/IB : Got completion from peer"
        f" 10.0.{n % 99}.{n % 250}<4444> with status=12 opcode=0 len=0 vendor err 129"
        for n in range(8192)
    ]


def connections(rng: random.Random) -> list[str]:
    """Return connections between nodes, one in eight without GPUDirect."""
    return [
        f"node-{n % 64}:{1000 + n % 512}:2000 [0] NCCL INFO Channel {n % 32:02}/0 : {n % 512}[0] ->"
        f" {(n + 8) % 512}[0] [send] via NET/IB/{n % 8}{'' if n % 8 == 7 else '/GDRDMA'}"
        for n in range(8192)
    ]


def last_words(rng: random.Random) -> list[str]:
    """Return what torch says of ranks whose peers are gone."""
    return [
        f"[rank{n % 512}]: ncclRemoteError: A call failed possibly due to a network error {n}"
        for n in range(8192)
    ]


def killed(rng: random.Random) -> list[str]:
    """Return what srun says of tasks that the kernel killed."""
    return [f"srun: error: node-{n}: task {n}: Out Of Memory" for n in range(8192)]


KINDS: dict[str, Callable[[random.Random], list[str]]] = {
    "64 ranks train": mixed,
    "NCCL's lines only": nccl,
    "a line without an end": endless,
}
DENSE: dict[str, Callable[[random.Random], list[str]]] = {
    "errors of NCCL's": errors,
    "connections between nodes": connections,
    "errors of torch's": last_words,
    "tasks that were killed": killed,
}
FILES = 16


def write(path: Path, kind: str, size: int) -> None:
    """Write a log of ``size`` bytes: a start, then the same again and again, and an error."""
    lines = {**KINDS, **DENSE}[kind](random.Random(1))
    block = "\n".join(lines) + ("\n" if len(lines) > 1 else "")
    last = "node-5:1040:2040 [0] net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error"
    with path.open("w") as file:
        file.write("\n".join(line for rank in range(RANKS) for line in start(rank)) + "\n")
        while file.tell() < size:
            file.write(block)
        file.write(f"\n{last}\n")


def measure(path: Path) -> dict[str, object]:
    """Return what a diagnosis costs in this process."""
    began, processor = time.perf_counter(), time.process_time()
    sources = of_paths([path]).sources
    found = examine(sources, None, more=ends(sources))
    return {
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - processor,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "verdict": found.verdict,
        "cause": (found.cause or {}).get("kind"),
        "host": (found.cause or {}).get("host"),
        "hcas": found.hcas,
    }


def main() -> None:
    """Print the tables."""
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
    print("\n| log of 1 GB | seconds | of processor | memory MB | found |\n|---|---|---|---|---|")
    for kind in KINDS:
        cost = of(kind, GIGABYTE, files=1)
        found = f"{cost['cause']} on {cost['host']}, {cost['hcas']} HCAs"
        print(
            f"| {kind} | {cost['wall_s']:.1f} | {cost['cpu_s']:.1f} |"
            f" {cost['memory_mb']:.0f} | {found} |",
            flush=True,
        )
    print(f"\n| {FILES} logs of 1 MB | of processor, s a MB | found |\n|---|---|---|")
    for kind in DENSE:
        cost = of(kind, MEGABYTE, files=FILES)
        print(f"| {kind} | {cost['cpu_s'] / FILES:.3f} | {cost['cause']} |", flush=True)


def of(kind: str, size: int, *, files: int) -> dict[str, Any]:
    """Return what a diagnosis of such logs costs, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(files):
            write(Path(folder) / f"job-{number}.log", kind, size)
        argv = [sys.executable, "-m", "tests.bench.diagnose", folder]
        done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
    cost: dict[str, Any] = json.loads(done.stdout)
    return cost


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(measure(Path(sys.argv[1]))))
    else:
        main()
