"""What tests.gpu.planner and tests.gpu.tuning share: ranks, started once for all configurations."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from orchestrator.runtime.environment import Environment
from orchestrator.spec.train import TrainSpec, mesh_shape
from orchestrator.trainer.world import World

_TIMEOUT = timedelta(seconds=120)


def start(module: str, folder: Path) -> int:
    """Run ``module`` with this process's arguments, a rank for each GPU; return torchrun's code."""
    # Counts without a CUDA context in this process.
    count = min(torch.cuda.device_count(), 2) or 2
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    argv += [f"--nproc-per-node={count}", "-m", module, *sys.argv[1:]]
    environment = {
        "OMP_NUM_THREADS": "1",
        # As the launcher sets it for every attempt.
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        **os.environ,
        "FSDPQ_RUN_DIR": str(folder),
        "FSDPQ_ATTEMPT": "1",
    }
    return subprocess.run(argv, env=environment, check=False).returncode


def join() -> tuple[int, int]:
    """Meet the other ranks once for all configurations; return rank and world size."""
    on_gpu = torch.cuda.is_available()
    local = int(os.environ["LOCAL_RANK"])
    if on_gpu:
        torch.cuda.set_device(local)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        timeout=_TIMEOUT,
        device_id=torch.device("cuda", local) if on_gpu else None,
    )
    return dist.get_rank(), dist.get_world_size()


def leave() -> None:
    """Part from the other ranks."""
    dist.barrier()
    dist.destroy_process_group()


def world_of(env: Environment, spec: TrainSpec) -> World:
    """Return the world of a configuration, in the process group that is there."""
    replicate, shard = mesh_shape(spec, env.world_size)
    on_gpu = torch.cuda.is_available()
    kind = "cuda" if on_gpu else "cpu"
    mesh = (
        init_device_mesh(kind, (shard,), mesh_dim_names=("shard",))
        if replicate == 1
        else init_device_mesh(kind, (replicate, shard), mesh_dim_names=("replicate", "shard"))
    )
    group = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    device = torch.device(kind, env.local_rank) if on_gpu else torch.device("cpu")
    return World(
        rank=env.rank, size=env.world_size, device=device, mesh=mesh, checkpoint_group=group
    )


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Draw weights on the device, shard by shard: nothing is ever whole, and nothing is loaded."""
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if "norm" in name:
            local.fill_(1.0)
        else:
            local.normal_(std=0.02)
