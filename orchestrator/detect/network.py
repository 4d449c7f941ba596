"""From what a node showed to the profile's network, GPUs and file systems. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.clouds import Cloud
from orchestrator.detect.draft import Draft
from orchestrator.detect.login import put_node_local
from orchestrator.detect.node import Node
from orchestrator.preflight.hcas import Port

# InfiniBand's name for a rate in Gbit/s of four lanes, of two and of one.
_NAMES = {10: "SDR10", 20: "DDR20", 40: "QDR40", 56: "FDR56", 100: "EDR100", 200: "HDR200",
          400: "NDR400", 800: "XDR800"}  # fmt: skip
_LAYERS = {"infiniband": "infiniband", "ethernet": "roce"}
_NEAR = ("PIX", "PXB")
# Whose machine it is, as DMI says. Source: the clouds' own pages on how to tell.
_VENDORS: tuple[tuple[str, Cloud], ...] = (
    ("amazon ec2", "aws"),
    ("google", "gcp"),
    # Azure's chassis asset tag; "Microsoft Corporation" alone may be anybody's Hyper-V.
    ("7783-7084-3265-9085-8269-3286-77", "azure"),
)
_MEMLOCK = "ulimit -l"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network between nodes, by the adapters of one of them."""

    kind: str
    hcas: int
    gbps: float | None
    names: tuple[str, ...]
    down: tuple[str, ...] = ()


def network(ports: Sequence[Port], present: Sequence[str] = ()) -> Network | None:
    """Return the network that the adapters belong to; None where there are none that carry data.

    InfiniBand goes before Ethernet: a node has a port of the latter for its storage, and so do
    machines in clouds. Of ports of several speeds only the fastest count.
    """
    active = [port for port in ports if port.state == "active"]
    by_kind: dict[str, list[Port]] = {}
    for port in active:
        by_kind.setdefault(_kind(port), []).append(port)
    for kind in ("efa", "infiniband", "omnipath", "roce"):
        if found := by_kind.get(kind):
            return _fastest(kind, found, ports)
    if any(path.startswith("/sys/class/cxi/") for path in present):
        cxi = sum(path.startswith("/sys/class/cxi/") for path in present)
        return Network(kind="slingshot", hcas=cxi, gbps=None, names=("cxi",))
    return None


def _kind(port: Port) -> str:
    if port.hca.startswith(("efa", "rdmap")) and port.layer not in _LAYERS:
        return "efa"
    if port.hca.startswith("hfi"):
        return "omnipath"
    return _LAYERS.get(port.layer, "")


def _fastest(kind: str, found: Sequence[Port], ports: Sequence[Port]) -> Network:
    rates = [port.gbps for port in found if port.gbps is not None]
    best = max(rates, default=None)
    fast = [port for port in found if port.gbps == best] if best is not None else list(found)
    down = [port.hca for port in ports if _kind(port) == kind and port.state != "active"]
    names = tuple(dict.fromkeys(port.hca for port in fast))
    return Network(kind=kind, hcas=len(names), gbps=best, names=names, down=tuple(down))


def put_unseen_network(draft: Draft, ports: Sequence[Port]) -> None:
    """Add the network as far as the login node's own adapters tell."""
    found = network(ports)
    if found is not None:
        source = f"the login node has {', '.join(found.names)} of that kind; --node looks at a node"
        draft.put(("fabric", "kind"), found.kind, source, "low")
        return
    source = "nobody looked; `fsdpq sites detect --node` does. Without it nothing is promised"
    draft.put(("fabric", "kind"), "ethernet", source, "low")


def put_node(draft: Draft, node: Node, *, untyped: bool) -> None:
    """Add what a compute node showed.

    Args:
        draft: The profile.
        node: What the node showed.
        untyped: Whether Slurm has no name for the model of its GPUs.
    """
    where = f"probe on {node.host}"
    _put_fabric(draft, node, where)
    _put_gpus(draft, node, where, untyped=untyped)
    _put_cloud(draft, node, where)
    for path, kind in node.mounts.items():
        put_node_local(draft, path, kind, f"{where}: /proc/mounts")
    _note(draft, node)


def _put_fabric(draft: Draft, node: Node, where: str) -> None:
    found = network(node.ports, node.present)
    at = ("fabric", "kind")
    if special := _special(node.present):
        draft.put(at, special[0], f"{where}: {special[1]}")
        return
    if found is None:
        draft.put(at, "ethernet", f"{where}: no active adapter in /sys/class/infiniband, no cxi")
        return
    sysfs = f"{where}: /sys/class/infiniband" if found.kind != "slingshot" else f"{where}: cxi"
    draft.put(at, found.kind, f"{sysfs}, link_layer of {', '.join(found.names)}")
    missing = f", without {', '.join(found.down)} (not active)" if found.down else ""
    draft.put(("fabric", "hcas_per_node"), found.hcas, f"{sysfs}: active ones{missing}")
    if found.gbps is not None:
        draft.put(("fabric", "rate"), _rate(found), f"{sysfs}: rate")
    if "/usr/local/gib" in node.present and found.kind == "roce":
        draft.put(("fabric", "networks"), ["gIB"], f"{where}: /usr/local/gib")
    _put_gdr(draft, node, where)


def _special(present: Sequence[str]) -> tuple[str, str] | None:
    """Return a network of Google's own that needs its library, and where that lies."""
    for kind, path in (("tcpxo", "/var/lib/tcpxo"), ("tcpx", "/var/lib/tcpx")):
        if path in present:
            return kind, path
    return None


def _rate(found: Network) -> str:
    gbps = found.gbps or 0
    return (
        _NAMES.get(int(gbps), f"{gbps:g} Gb/s") if found.kind == "infiniband" else f"{gbps:g} Gb/s"
    )


def _put_gdr(draft: Draft, node: Node, where: str) -> None:
    """Promise GPUDirect only where all of it is there; what is unclear stays unknown."""
    way = "nvidia_peermem" if node.peermem else "DMA-BUF" if node.dmabuf else ""
    if not node.nearest:
        return
    far = [f"GPU{i} {d or 'none'}" for i, d in enumerate(node.nearest) if d not in _NEAR]
    if far:
        draft.note(f"nvidia-smi topo -m on {node.host}: no adapter near {', '.join(far[:8])}")
    if way and not far:
        source = f"{where}: {way}, and nvidia-smi topo -m: an adapter at PIX or PXB for each GPU"
        draft.put(("fabric", "gdr"), True, source)
    elif not way:
        draft.note(f"{node.host}: neither nvidia_peermem nor DMA-BUF, so GPUDirect is not promised")


def _put_gpus(draft: Draft, node: Node, where: str, *, untyped: bool) -> None:
    if not node.gpus:
        return
    name, mib = node.gpus[0]
    source = f"{where}: nvidia-smi --query-gpu=name,memory.total"
    data = draft.data().get("gpu")
    if data is None:
        return
    # Slurm's word for the model says nothing of its size; the GPU itself does.
    if untyped or name.lower().startswith(str(data["model"]).lower()):
        draft.put(("gpu", "model"), name, source)
    draft.put(("gpu", "memory_gib"), round(mib / 1024, 1), source)
    if node.arch in ("x86_64", "aarch64"):
        draft.put(("gpu", "arch"), node.arch, f"{where}: uname -m")


def _put_cloud(draft: Draft, node: Node, where: str) -> None:
    vendor = node.vendor.lower()
    cloud = next((cloud for sign, cloud in _VENDORS if sign in vendor), None)
    answers = node.answers.get(cloud or "", "") == "200"
    if cloud and answers:
        source = f"{where}: /sys/class/dmi/id, and its metadata service answers"
        draft.put(("cloud",), cloud, source)
    elif cloud:
        draft.note(f"{node.host} is a machine of {cloud}, but no metadata service answered there")


def _note(draft: Draft, node: Node) -> None:
    if node.shm_kib is not None:
        draft.note(f"/dev/shm on {node.host}: {node.shm_kib / 2**20:.1f} GiB")
    memlock = node.limits.get("l", "unlimited")
    if memlock != "unlimited":
        draft.note(f"{_MEMLOCK} on {node.host} is {memlock} KiB: RDMA needs `unlimited`")
    if node.nccl_conf:
        draft.note(f"/etc/nccl.conf on {node.host}: {'; '.join(node.nccl_conf[:40])}")
    if node.interfaces:
        draft.note(f"interfaces of {node.host}: {', '.join(node.interfaces[:16])}")
