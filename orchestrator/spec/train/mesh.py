"""How ranks share the parameters: `train.mesh`."""

from typing import Annotated, Literal

from pydantic import BeforeValidator

from orchestrator.keys.counts import MOST, Count
from orchestrator.keys.fields import Strict


def _copies(value: object) -> object:
    if value == "auto" or (type(value) is int and 1 <= value <= MOST):
        return value
    raise ValueError(f"must be a whole number of copies, 1 to {MOST}, or auto")


def _named_mesh(value: object) -> object:
    """Return the mesh that a word stands for: fsdp shards over all ranks, hsdp over a node."""
    if not isinstance(value, str):
        return value
    if value not in ("fsdp", "hsdp"):
        raise ValueError("must be fsdp, hsdp, or sizes such as {replicate: 2, shard: 8}")
    return {"replicate": "auto"} if value == "hsdp" else {}


class MeshSpec(Strict):
    """How ranks share the parameters: `replicate` copies, each sharded over `shard` ranks.

    `shard` left out means all ranks that are left, and `replicate: auto` as many copies as there
    are ranks for. Only sharding lowers the memory per rank. The ranks of a shard group follow one
    another, so a group of as many ranks as a node has GPUs is one node.
    """

    replicate: Annotated[int | Literal["auto"], BeforeValidator(_copies)] = 1
    shard: Count | None = None


Mesh = Annotated[MeshSpec, BeforeValidator(_named_mesh)]
