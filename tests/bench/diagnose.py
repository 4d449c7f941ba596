"""`python -m tests.bench.diagnose`: `fsdpq diagnose` on a log of a gigabyte.

Three kinds, each in a process of its own, whose memory is its own: what a job of many ranks leaves
(steps, and NCCL's start in between), nothing but lines of NCCL's, and one line without an end.
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

from orchestrator.fabric.examine import ends, examine
from orchestrator.fabric.sources import of_paths

GIGABYTE = 10**9
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


KINDS: dict[str, Callable[[random.Random], list[str]]] = {
    "64 ranks train": mixed,
    "NCCL's lines only": nccl,
    "a line without an end": endless,
}


def write(path: Path, kind: str, size: int) -> None:
    """Write a log of ``size`` bytes: a start, then the same again and again, and an error."""
    lines = KINDS[kind](random.Random(1))
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
    """Print the table."""
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
    print("\n| log of 1 GB | seconds | of processor | memory MB | found |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = Path(folder) / "job.log"
            write(path, kind, GIGABYTE)
            argv = [sys.executable, "-m", "tests.bench.diagnose", str(path)]
            done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
            cost = json.loads(done.stdout)
            found = f"{cost['cause']} on {cost['host']}, {cost['hcas']} HCAs"
            print(
                f"| {kind} | {cost['wall_s']:.1f} | {cost['cpu_s']:.1f} |"
                f" {cost['memory_mb']:.0f} | {found} |",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(measure(Path(sys.argv[1]))))
    else:
        main()
