"""A real Slurm whose hosts have the real GPUs of this machine, each host its own ones.

Each host is a network, process and mount namespace, so NCCL takes them for machines of their own
that have nothing but sockets between them. Without GPUs, or with fewer than are asked for, the
hosts have made-up ones and the ranks use gloo, which is how the scripts themselves are tried.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.runstore import store
from tests.gpu import packages
from tests.slurm.cluster import Cluster, ClusterConfig, ComputeHost
from tests.slurm.cluster.config import SYSTEM_PATH
from tests.slurm.user import FsdpqUser

# Without NVLink multicast, as all rows of RESULTS.md.
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}
# What of this process's environment the jobs need too: drivers, packages, settings of NCCL.
HANDED_ON = ("LD_LIBRARY_PATH", "NCCL_", "TORCH_", "NVSHMEM_", "PYTORCH_", "CUDA_HOME")
_BUS = re.compile(r"\bbusId (?:0x)?(\w+)")
_WAY = re.compile(r" via (\S+)")
_TYPE = re.compile(r"\b(?:GH|GB|[ABHL])\d{2,3}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the hosts are made of.

    Attributes:
        devices: Device files of the GPUs of each host; empty ones where there are no GPUs.
        gpu: The GPUs' name.
        cpus: Of each host.
        grace_s: What a preempted job has left, by its partition's GraceTime.
    """

    hosts: int
    gpus_per_host: int
    devices: tuple[tuple[str, ...], ...]
    gpu: str
    cpus: int
    grace_s: int = 30

    @property
    def real(self) -> bool:
        """Whether the GPUs are real ones."""
        return all(self.devices)

    @property
    def gpus(self) -> int:
        """How many GPUs all hosts have together."""
        return self.hosts * self.gpus_per_host

    @property
    def kind(self) -> str:
        """What Slurm calls them, such as h200."""
        found = _TYPE.search(self.gpu)
        return found.group().lower() if found else "gpu"

    @property
    def config(self) -> ClusterConfig:
        """The cluster: a low partition, and a high one that preempts it."""
        grace = f"PreemptMode=REQUEUE GraceTime={self.grace_s}"
        low = f"Default=YES PriorityTier=1 {grace} DefaultTime=60"
        each = "MaxTime=INFINITE Nodes=ALL"
        return ClusterConfig(
            hosts=tuple(
                ComputeHost(
                    name=f"gpu{number}",
                    gpu=self.kind,
                    gpus=self.gpus_per_host,
                    devices=devices,
                    cpus=self.cpus,
                    memory_mb=max(64000, self.cpus * 2000),
                )
                for number, devices in enumerate(self.devices, start=1)
            ),
            partitions=(
                f"PartitionName=spot {low} {each}",
                f"PartitionName=prod PriorityTier=100 PreemptMode=OFF {each}",
            ),
            grace_s=self.grace_s,
            accounting=False,
        )

    def site(self) -> dict[str, Any]:
        """The site profile of the cluster."""
        return {
            "name": "gpu-hosts",
            "description": "hosts with the GPUs of one machine",
            "source": ["tests/gpu/hosts.py"],
            "checked": "2026-11-30",
            "confidence": "own",
            "gpu": {
                "model": self.gpu,
                "per_node": self.gpus_per_host,
                "request": "gres-typed",
                "type": self.kind,
            },
            "cpus_per_node": self.cpus,
            "default_partition": "spot",
            "partitions": {"spot": {"preempt": "requeue", "grace_s": self.grace_s}, "prod": {}},
            "fabric": {"kind": "ethernet"},
            "env": NO_MULTICAST,
        }


def machine(hosts: int, gpus_per_host: int) -> Machine:
    """Return what this machine gives: its first GPUs to the first host, and so on."""
    names = device_files()
    enough = len(names) >= hosts * gpus_per_host
    each = [names[i * gpus_per_host :][:gpus_per_host] if enough else [] for i in range(hosts)]
    return Machine(
        hosts=hosts,
        gpus_per_host=gpus_per_host,
        devices=tuple(map(tuple, each)),
        gpu=_gpu_name() if enough else "H100-80GB",
        cpus=max(2, (os.cpu_count() or 2) // hosts),
    )


def device_files() -> list[str]:
    """Return the device files of this machine's GPUs, in order."""
    found = Path("/dev").glob("nvidia[0-9]*")
    return [str(path) for path in sorted(found, key=lambda path: int(path.name[6:]))]


def _gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name(0)


def prepare(debs: Path | None) -> None:
    """Unpack Slurm, where it is to come from a folder."""
    if debs is not None:
        packages.install(debs)
    packages.make_cgroup()


def alice(cluster: Cluster, here: Machine) -> FsdpqUser:
    """Return a user of the cluster whose jobs see drivers and packages as this process does."""
    handed = {key: value for key, value in os.environ.items() if key.startswith(HANDED_ON)}
    more = os.environ.get("PYTHONPATH", "")
    python_path = ":".join(filter(None, [str(cluster.repository), more]))
    search = f"{Path(cluster.python).parent}:{SYSTEM_PATH}:{os.environ.get('PATH', '')}"
    fixed = {"PYTHONPATH": python_path, "PATH": search, "HF_HUB_OFFLINE": "1"}
    user = FsdpqUser(cluster, {**handed, **NO_MULTICAST, **fixed})
    user.write(user.home / "site.yaml", json.dumps(here.site()))
    return user


def submit(
    user: FsdpqUser, here: Machine, name: str, train: Mapping[str, Any], **keys: Any
) -> RunLayout:
    """Submit a run of the reference trainer over all GPUs and return its directory."""
    common = {
        "site": str(user.home / "site.yaml"),
        "nodes": here.hosts,
        "gpus_per_node": here.gpus_per_host,
        "notice": {"lead_s": here.grace_s * 2 // 3},
    }
    return user.submit(name, train=dict(train), **{**common, **keys})


def llama(*, hidden: int, inner: int, layers: int, heads: int, vocab: int, seq_len: int) -> Any:
    """Return the configuration of a Llama with four query heads to a key head."""
    return {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 4),
        "max_position_embeddings": seq_len,
        "tie_word_embeddings": True,
    }


def text() -> list[str]:
    """Return the data: Python's own standard library."""
    return [f"{sysconfig.get_path('stdlib')}/*.py"]


def seen(cluster: Cluster) -> list[str]:
    """Return the GPUs that nvidia-smi shows on each host; nothing where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    argv = [program, "--query-gpu=uuid", "--format=csv,noheader"]
    shown = [cluster.run(argv, host=host, check=False, user="root") for host in cluster.nodes]
    return [" ".join((done.stdout or done.stderr).split()) for done in shown]


# -- what was left in the run directory ------------------------------------------------------------


def noticed_at(attempt: AttemptLayout) -> float:
    """Return when the first node of an attempt heard the notice, in seconds since 1970.

    The wrappers write whole seconds, so it may be up to one second earlier than it was.
    """
    files = attempt.root.glob("notice.*")
    lines = [line for file in files for line in file.read_text().splitlines()]
    return min(float(line.split()[1]) for line in lines)


def bus_ids(attempt: AttemptLayout) -> set[tuple[str, str]]:
    """Return the GPUs that NCCL used, as (host, bus id)."""
    found = set()
    for log in attempt.nccl.glob("*.log"):
        host = log.name.split(".")[0]
        found |= {(host, bus) for bus in _BUS.findall(log.read_text(errors="replace"))}
    return found


def channels(attempt: AttemptLayout) -> dict[str, int]:
    """Return the ways between ranks that NCCL's logs name, and how often."""
    logs = [log.read_text(errors="replace") for log in attempt.nccl.glob("*.log")]
    return dict(Counter(way for log in logs for way in _WAY.findall(log)).most_common())


def network(attempt: AttemptLayout) -> str:
    """Return what fsdpq says of the network between the hosts."""
    found = store.read_json(attempt.fabric) or {}
    return str(found.get("network") or found.get("verdict") or "-")


def saves(run: RunLayout) -> list[dict[str, Any]]:
    """Return what the saves of a run cost."""
    lines = run.saves.read_text().splitlines() if run.saves.exists() else []
    return [line for line in map(json.loads, lines) if line["kind"] == "save"]


def pack(out: Path | None, name: str, user: FsdpqUser) -> None:
    """Keep the logs of Slurm and of all runs, without their checkpoints, in NAME.tar.gz."""
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    left = {"checkpoints", "compiled", "fsdpq", "code"}

    def chosen(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if left & set(Path(entry.name).parts) or entry.size > 8 * 2**20 else entry

    with tarfile.open(out / f"{name}.tar.gz", "w:gz") as archive:
        for folder in (user.cluster.work / "log", user.runs):
            if folder.exists():
                archive.add(folder, arcname=folder.name, filter=chosen)


def driver() -> str:
    """Return the version of the GPUs' driver, or a dash."""
    argv: Sequence[str] = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError:
        return "-"
    return (done.stdout.split() or ["-"])[0]
