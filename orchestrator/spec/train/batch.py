"""How ranks share out the global batch and the mesh. Pure."""

from orchestrator.errors import SpecError
from orchestrator.spec.train.mesh import MeshSpec
from orchestrator.spec.train.schema import TrainSpec


def fits(spec: TrainSpec, world_size: int) -> bool:
    """Return whether ``world_size`` ranks can share out the batch and the mesh."""
    try:
        check_batch(spec, world_size)
    except SpecError:
        return False
    return True


def mesh_shape(spec: TrainSpec, world_size: int) -> tuple[int, int]:
    """Return (replicate, shard): how ``world_size`` ranks share the parameters.

    Raises:
        SpecError: The mesh asked for does not have that many ranks, or its shard groups have no
            size.
    """
    replicate, shard = _sizes(spec.mesh, world_size)
    if replicate * shard != world_size:
        raise SpecError(
            f"train.mesh: {replicate} replicas x {shard} shards = {replicate * shard} ranks, but"
            f" the job has {world_size}; leave mesh.shard out to let it follow the number of ranks"
        )
    return replicate, shard


def _sizes(mesh: MeshSpec, world_size: int) -> tuple[int, int]:
    if mesh.replicate != "auto":
        return mesh.replicate, mesh.shard or max(world_size // mesh.replicate, 1)
    if mesh.shard is None:  # fsdpq settles it from the GPUs of a node before it writes train.json
        raise SpecError("train.mesh: replicate: auto needs a size for the shard groups; add shard")
    return max(world_size // mesh.shard, 1), mesh.shard


def check_batch(spec: TrainSpec, world_size: int) -> int:
    """Return how many micro-batches each of ``world_size`` ranks takes per step.

    Raises:
        SpecError: The global batch does not divide into whole micro-batches over the ranks, or
            the mesh does not fit the ranks; says which batch sizes would do.
    """
    mesh_shape(spec, world_size)
    at_once = spec.micro_batch * world_size
    if spec.global_batch % at_once:
        below = spec.global_batch // at_once * at_once
        near = [str(size) for size in (below, below + at_once) if size]
        raise SpecError(
            f"train.global_batch {spec.global_batch} cannot be shared out: micro_batch"
            f" {spec.micro_batch} x {world_size} ranks take {at_once} sequences at once. Use"
            " another micro_batch or number of ranks, or, for a new run, global_batch"
            f" {' or '.join(near)}"
        )
    return spec.global_batch // at_once
