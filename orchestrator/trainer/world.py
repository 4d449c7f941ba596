"""The ranks: device, process groups and mesh."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from orchestrator.errors import RunError
from orchestrator.runtime.environment import Environment
from orchestrator.spec.train import TrainSpec, mesh_shape


@dataclass(frozen=True, slots=True)
class World:
    """This rank's place among the others.

    Attributes:
        rank: Its number.
        size: How many there are.
        device: Where it computes.
        mesh: 1-D ("shard") or 2-D ("replicate", "shard").
        checkpoint_group: Gloo; used by checkpoints alone, so that they meet no other traffic.
    """

    rank: int
    size: int
    device: torch.device
    mesh: DeviceMesh
    checkpoint_group: dist.ProcessGroup


def connect(env: Environment, spec: TrainSpec) -> World:
    """Return the world, once all ranks are there.

    Raises:
        SpecError: The mesh does not fit the number of ranks.
        RunError: There are several ranks, and nobody says where they meet.
    """
    shape = mesh_shape(spec, env.world_size)
    device = _device(env.local_rank)
    _init_process_group(env, device, timeout=timedelta(seconds=spec.timeouts_s.init))
    patience = timedelta(seconds=spec.timeouts_s.checkpoint)
    return World(
        rank=env.rank,
        size=env.world_size,
        device=device,
        mesh=_mesh(device.type, shape),
        checkpoint_group=dist.new_group(backend="gloo", timeout=patience),
    )


def shorten_timeout(spec: TrainSpec) -> None:
    """Expect each step within the step time-out from now on. Call it after the first step.

    The first step may load kernels and compile for many minutes; later ones that take so long hang.
    """
    timeout = timedelta(seconds=spec.timeouts_s.step)
    # Public as dist.set_timeout from torch 2.14 on only.
    dist.distributed_c10d._set_pg_timeout(timeout, dist.group.WORLD)


def meet(world: World, spec: TrainSpec) -> None:
    """Return once all ranks have come this far.

    Raises:
        RuntimeError: Some have not, within the time-out of the start; names all of them.
    """
    patience = timedelta(seconds=spec.timeouts_s.init)
    dist.monitored_barrier(world.checkpoint_group, timeout=patience, wait_all_ranks=True)


def leave(world: World) -> None:
    """Take the process groups apart, after all ranks have come this far.

    A rank that leaves early makes gloo abort in the others.
    """
    dist.barrier(world.checkpoint_group)
    dist.destroy_process_group()


def fix_arithmetic(spec: TrainSpec) -> None:
    """Make sums come out the same each time, where the specification asks for it."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if spec.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        # Filling fresh memory costs time and hides nothing that matters here.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _init_process_group(env: Environment, device: torch.device, *, timeout: timedelta) -> None:
    on_gpu = device.type == "cuda"
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    device_id = device if on_gpu else None
    if "MASTER_ADDR" in os.environ:
        dist.init_process_group(backend, timeout=timeout, device_id=device_id)
        return
    if env.world_size > 1:
        raise RunError("several ranks need a launcher that sets MASTER_ADDR, such as torchrun")
    dist.init_process_group(
        backend, timeout=timeout, device_id=device_id, store=HashStore(), rank=0, world_size=1
    )


def _mesh(device_type: str, shape: tuple[int, int]) -> DeviceMesh:
    replicate, shard = shape
    if replicate == 1:
        return init_device_mesh(device_type, (shard,), mesh_dim_names=("shard",))
    return init_device_mesh(device_type, shape, mesh_dim_names=("replicate", "shard"))
