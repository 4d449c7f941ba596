"""The bandwidth sweep on two GPUs of this machine: as one host, and as two with a cable between.

    python -m tests.gpu.bandwidth [--most-mib 1024] [--budget 60] [--only one|two] [--out FILE]

One host: `fsdpq diagnose --bench` on the site `local`; NCCL uses NVLink where there is any. Two
hosts: one GPU in each of two network namespaces (root), so that NCCL takes them for two machines
and has nothing but sockets. Prints a table for RESULTS.md. On a machine without a GPU the ranks
use gloo, which is how the script itself is tried.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from orchestrator import report
from orchestrator.bandwidth import Record
from orchestrator.bandwidth.finding import gbs_text, size_text
from orchestrator.bandwidth.formulas import COLLECTIVES
from tests.gpu.preempted import FSDPQ
from tests.gpu.veth import two_hosts

ADDRESSES = ("10.99.0.1", "10.99.0.2")
CABLE = "cable0"
PORT = "29400"
_WAY = re.compile(r" via (\S+)")


def one_host(folder: Path, args: argparse.Namespace) -> Record:
    """Return what `fsdpq diagnose --bench` measures here."""
    job = {
        "name": "one-host",
        "site": "local",
        "gpus_per_node": 2,
        "script": __file__,
        "preflight": {"bandwidth_timeout_s": args.budget},
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))  # JSON is YAML
    argv = [*FSDPQ, "diagnose", "--bench", str(path), "--runs", str(folder / "runs"), "--json"]
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        logs = [log.read_text()[-6000:] for log in folder.glob("runs/*/batch.log")]
        sys.exit(f"fsdpq diagnose exited {done.returncode}: {''.join(logs)}")
    return Record.from_json(json.loads(done.stdout))


def two_machines(folder: Path, args: argparse.Namespace) -> Record:
    """Return what two ranks measure that have a cable between them alone."""
    words = ["-m", "orchestrator.preflight.sweep", "--budget", str(args.budget)]
    words += ["--most-mib", str(args.most_mib)]
    with two_hosts(CABLE, ADDRESSES) as hosts:
        ranks = [
            subprocess.Popen([*host, sys.executable, *words], env=environment(folder, rank))
            for rank, host in enumerate(hosts)
        ]
        codes = [rank.wait() for rank in ranks]
    if any(codes):
        sys.exit(f"the ranks in two namespaces ended with {codes}")
    return Record.from_json(json.loads((folder / "bandwidth.json").read_text()))


def environment(folder: Path, rank: int) -> dict[str, str]:
    """Return what a rank needs to meet the other one over the cable."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": ADDRESSES[0],
        "MASTER_PORT": PORT,
        "CUDA_VISIBLE_DEVICES": str(rank) if torch.cuda.is_available() else "",
        "NCCL_HOSTID": f"host{rank + 1}",
        "NCCL_SOCKET_IFNAME": f"={CABLE}",
        "GLOO_SOCKET_IFNAME": CABLE,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": str(folder / "nccl.%h.%p.log"),
        "FSDPQ_ATTEMPT_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
    }


def ways(folder: Path) -> str:
    """Return the ways between ranks that NCCL's logs below ``folder`` name, with their channels."""
    logs = [*folder.glob("nccl.*.log"), *folder.glob("runs/*/attempts/*/nccl/*.log")]
    found = Counter(way for log in logs for way in _WAY.findall(log.read_text(errors="replace")))
    return ", ".join(f"{way} ({count})" for way, count in found.most_common()) or "-"


def markdown(name: str, record: Record, way: str) -> str:
    """Return a section for RESULTS.md."""
    rows = [f"| {name} | {' | '.join(COLLECTIVES)} |", "|---|---|---|---|"]
    by_size: dict[int, dict[str, str]] = {}
    for item in record.measurements:
        text = f"{gbs_text(item.bus_gbs)} ({item.seconds * 1e3:.3g} ms)"
        by_size.setdefault(item.size, {})[item.collective] = text
    for size, cells in by_size.items():
        rows.append(f"| {size_text(size)} | {' | '.join(cells[c] for c in COLLECTIVES)} |")
    return "\n".join([*rows, "", f"NCCL's channels: {way}"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--most-mib", type=int, default=1024, help="largest array of two hosts")
    parser.add_argument("--budget", type=int, default=60, help="seconds to measure for, each")
    parser.add_argument("--only", choices=("one", "two"))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    figures = {}
    for name, measure in (("one", one_host), ("two", two_machines)):
        if args.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            record = measure(Path(folder), args)
            title = {"one": "one host", "two": "two hosts, veth"}[name]
            section = markdown(title, record, ways(Path(folder)))
            print(f"{report.bandwidth_table(record)}\n\n{section}\n")
            figures[title] = record.to_json()
    if args.out:
        args.out.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
