"""Let NCCL talk between two hosts of this machine, and see what `fsdpq diagnose` makes of it.

    python -m tests.gpu.diagnose [--folder DIR]

Needs root and two GPUs. Two network namespaces with a cable between them and host names of their
own are two hosts to NCCL, one GPU each; sockets are all they have. Prints what is said of the logs
as those of an InfiniBand site, of an Ethernet site and of no site; exits with the number of
expectations that did not hold. The logs stay in DIR. Without GPUs the ranks use gloo, which shows
no more than that the two hosts reach each other.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from orchestrator.fabric.examine import ends, examine
from orchestrator.fabric.promise import Promise
from orchestrator.fabric.sources import of_paths
from orchestrator.fabric.text import describe
from tests.gpu.veth import two_hosts

HOSTS = ("gpu1", "gpu2")
CABLE = "eth-fsdpq"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PROMISES = {
    "infiniband": (Promise(kind="infiniband", hcas=8, gdr=True, site="ib"), "socket_fallback"),
    "ethernet": (Promise(kind="ethernet", site="plain"), "ok"),
    "no profile": (None, "socket_fallback"),
}


def rank() -> None:
    """Add up a tensor with the other host."""
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    data = torch.ones(1 << 20, device="cuda" if cuda else "cpu")
    dist.all_reduce(data)
    assert data[0].item() == len(HOSTS)
    dist.destroy_process_group()


def start(number: int, host: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start one rank as the only one of its host."""
    environment = {
        **os.environ,
        "RANK": str(number),
        "WORLD_SIZE": str(len(HOSTS)),
        "MASTER_ADDR": ADDRESSES[0],
        "MASTER_PORT": "29511",
        "CUDA_VISIBLE_DEVICES": str(number),
        "GLOO_SOCKET_IFNAME": CABLE,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET",
        "NCCL_DEBUG_FILE": f"{folder}/%h.%p.log",
        # Else NCCL takes both for one machine by its boot id.
        "NCCL_HOSTID": HOSTS[number],
    }
    named = f'hostname {HOSTS[number]} && exec "$0" -m tests.gpu.diagnose --rank'
    argv = [*host, "unshare", "--uts", "sh", "-c", named, sys.executable]
    return subprocess.Popen(argv, env=environment)


def main() -> int:
    """Run both ranks and print what is said of their logs; return what did not hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rank", action="store_true", help="be one of them")
    args = parser.parse_args()
    if args.rank:
        rank()
        return 0
    folder = args.folder or Path(tempfile.mkdtemp(prefix="fsdpq-diagnose-"))
    folder.mkdir(parents=True, exist_ok=True)
    with two_hosts(CABLE, ADDRESSES) as hosts:
        ranks = [start(number, host, folder) for number, host in enumerate(hosts)]
        codes = [process.wait(timeout=300) for process in ranks]
    print(f"torch {torch.__version__}, exit codes {codes}, logs in {folder}")
    failed = sum(code != 0 for code in codes)
    for site, (promise, verdict) in PROMISES.items():
        sources = of_paths([folder]).sources
        found = examine(sources, promise, more=ends(sources))
        failed += found.verdict != verdict
        print(f"\n# {site}: {'as expected' if found.verdict == verdict else 'NOT AS EXPECTED'}")
        print(describe(found))
    return failed


if __name__ == "__main__":
    sys.exit(main())
