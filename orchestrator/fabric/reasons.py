"""Why a network is not what it should be, and what to do about it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.fabric.hosts import Host
from orchestrator.fabric.network import Process, Told
from orchestrator.fabric.promise import Promise

NOTHING = Told()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why.

    Attributes:
        kind: Its name.
        what: A sentence without a full stop, with the host or the hosts.
        told: The line of the log that says so; an empty one where it is what is missing.
        host, rank: The first of those that say so.
        vague: Whether an error of the set-up would say more.
    """

    kind: str
    what: str
    advice: str
    told: Told = NOTHING
    host: str = ""
    rank: int | None = None
    vague: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        return {
            "kind": self.kind,
            "what": self.what,
            "advice": self.advice,
            "line": self.told.text,
            "host": self.host or None,
            "rank": self.rank,
            "file": self.told.file or None,
            "line_number": self.told.number or None,
        }


_DEVICES = (
    "Look at `ibv_devinfo` on that node: the driver, the state of the ports; in a container at"
    " /dev/infiniband and libibverbs"
)
_PLUGIN = (
    "aws-ofi-nccl is not found: put libnccl-net.so into LD_LIBRARY_PATH, and mount it and its"
    " libfabric into the container"
)
# What libfabric has to use, by the kind of the network, and what goes over the kernel's sockets.
PROVIDERS = {"efa": "efa", "slingshot": "cxi"}
OVER_SOCKETS = ("tcp", "sockets", "udp")
_OVER_OFI = tuple(PROVIDERS)


def sockets(processes: Sequence[Process], promise: Promise | None) -> Reason:
    """Return why ``processes`` talk over sockets."""
    first = _first(processes, "no device", "sockets")
    kind, name, advice, vague = _socket_cause(first, promise)
    site = f", and {promise.site or 'the site'} has {promise.kind}" if promise else ""
    return Reason(
        kind=kind,
        what=f"{_who(processes)} over sockets (TCP){site}",
        advice=advice,
        told=_told(first, name, "network Socket", "sockets"),
        host=first.host,
        rank=first.rank,
        vague=vague,
    )


def _socket_cause(process: Process, promise: Promise | None) -> tuple[str, str, str, bool]:
    """Return (kind, the name of the line that tells, advice, whether that is vague)."""
    env = process.env
    if env.get("NCCL_IB_DISABLE", "0").strip() not in ("0", ""):
        return "ib_disabled", "NCCL_IB_DISABLE", "Do not set NCCL_IB_DISABLE", False
    if env.get("NCCL_NET", "").lower() == "socket":
        return "sockets_forced", "NCCL_NET", "Do not set NCCL_NET=Socket", False
    if promise is not None and promise.kind in _OVER_OFI:
        return "plugin_missing", "plugin", _PLUGIN, True
    if "NCCL_IB_HCA" in env and not process.hcas:
        advice = f"NCCL_IB_HCA={env['NCCL_IB_HCA']} may match no adapter here. Else: {_DEVICES}"
        return "hca_filter", "NCCL_IB_HCA", advice, False
    return "no_ib_device", "no device", _DEVICES, True


def other_provider(processes: Sequence[Process], promise: Promise | None) -> Reason:
    """Return that libfabric does not use the network's own provider."""
    first = _first(processes, "provider")
    right = PROVIDERS.get(promise.kind) if promise else None
    wanted = f"FI_PROVIDER={right}" if right else "FI_PROVIDER with the network's own"
    return Reason(
        kind="other_provider",
        what=f"{_who(processes)} by libfabric's provider {first.provider}"
        + (f", and {promise.kind} has {right}" if promise and right else ""),
        advice=f"Look at `fi_info`: the driver, the device in the container, and libfabric's own"
        f" libraries; {wanted} makes a missing one an error instead of a slow run",
        told=_told(first, "provider"),
        host=first.host,
        rank=first.rank,
    )


def no_gdr(processes: Sequence[Process]) -> Reason:
    """Return why GPUDirect is not used, on all or some connections."""
    first = _first(processes, "gdr Disabled", "pair Disabled", "plain")
    kind, name, advice = _gdr_cause(first)
    with_it, all_of_them = (sum(p.channels[n] for p in processes) for n in (0, 1))
    count = f" ({with_it} of {all_of_them} connections have it)" if all_of_them else ""
    return Reason(
        kind=kind,
        what=f"{_who(processes)} without GPUDirect RDMA{count}",
        advice=advice,
        told=_told(first, name),
        host=first.host,
        rank=first.rank,
    )


def _gdr_cause(process: Process) -> tuple[str, str, str]:
    level = process.env.get("NCCL_NET_GDR_LEVEL")
    if level is not None:
        return (
            "gdr_level",
            "NCCL_NET_GDR_LEVEL",
            f"NCCL_NET_GDR_LEVEL={level} allows it for that distance only: leave it unset",
        )
    if "Disabled" in process.gdr_hcas.values():
        return (
            "peermem_or_dmabuf",
            "gdr Disabled",
            "Neither nvidia-peermem nor DMA-BUF is there: `modprobe nvidia-peermem` by an"
            " administrator (after the driver of the adapter), or NVIDIA's open kernel driver with"
            " a recent kernel",
        )
    ways = {channel[4] for channel in process.plain - process.gdr}
    if ways == {"send"} and process.gdr:
        return (
            "gdr_read",
            "plain",
            "Only what is sent goes without: NCCL does that where GPUs have no NVLink;"
            " NCCL_NET_GDR_READ=1 is worth a measurement",
        )
    return (
        "gdr_distance",
        "pair Disabled" if "pair Disabled" in process.told else "plain",
        "GPU and adapter may be too far apart for NCCL (more than PXB): look at `nvidia-smi topo"
        " -m`, and whether NCCL_TOPO_FILE is the machine's; nvidia-peermem or DMA-BUF may also be"
        " missing",
    )


def few_hcas(
    few: Sequence[Host], expected: int, processes: Sequence[Process], *, all_of: bool
) -> Reason:
    """Return that hosts have fewer HCAs than they should."""
    names = ", ".join(f"{host.name or 'a host'} uses {host.hcas}" for host in few[:4])
    more = f" and {len(few) - 4} more" if len(few) > 4 else ""
    missing = _missing(few[0], processes)
    filtered = next((p.env["NCCL_IB_HCA"] for p in processes if "NCCL_IB_HCA" in p.env), None)
    advice = "NCCL leaves out ports that are not active without a word: `ibstat` there"
    if filtered and all_of:
        advice = f"NCCL_IB_HCA={filtered} leaves some out. Else: {advice}"
    told = next((p for p in processes if p.host == few[0].name and "hcas" in p.told), None)
    return Reason(
        kind="fewer_hcas",
        what=f"{names}{more} of {expected} HCAs{missing}",
        advice=advice,
        told=_told(told, "hcas") if told else NOTHING,
        host=few[0].name,
        rank=told.rank if told else None,
    )


def _missing(host: Host, processes: Sequence[Process]) -> str:
    """Return which HCAs a host lacks that others have."""
    elsewhere = {hca for p in processes for hca in (p.hcas or {}) if p.host != host.name}
    lost = sorted(elsewhere - set(host.names))
    return f" (without {', '.join(lost[:8])})" if lost and host.names else ""


def mixed_layers(process: Process, promise: Promise | None) -> Reason:
    """Return that HCAs of two kinds of network are used together."""
    roce = promise is not None and promise.kind == "roce"
    wanted = "RoCE" if roce else "IB"
    ports = [hca for hca, layer in (process.hcas or {}).items() if layer == wanted]
    other = [hca for hca, layer in (process.hcas or {}).items() if layer != wanted]
    keep = ",".join(dict.fromkeys(port.rpartition(":")[0] for port in ports))
    return Reason(
        kind="mixed_link_layers",
        what=f"{_who([process])} over InfiniBand and RoCE ports at once ({', '.join(other[:8])}"
        f" beside {len(ports)} of {wanted})",
        advice=f"Keep the others out: NCCL_IB_HCA='={keep}'",
        told=_told(process, "hcas"),
        host=process.host,
        rank=process.rank,
    )


def other_net(process: Process, promise: Promise) -> Reason:
    """Return that a network is used that is not the site's."""
    return Reason(
        kind="other_network",
        what=f"{_who([process])} over {process.network}, and {promise.site or 'the site'} has"
        f" {' or '.join(promise.networks)}",
        advice="Is the site's own plugin there? See NCCL_NET_PLUGIN, LD_LIBRARY_PATH, and what the"
        " container mounts",
        told=_told(process, f"network {process.network}"),
        host=process.host,
        rank=process.rank,
    )


def _told(process: Process, *names: str) -> Told:
    """Return the line that says it, by the first of ``names`` that there is one of."""
    return next((process.told[name] for name in names if name in process.told), NOTHING)


def _first(processes: Sequence[Process], *names: str) -> Process:
    """Return the process whose lines tell most: by the first of ``names``, then by rank."""

    def key(process: Process) -> tuple[int, bool, int]:
        place = next((i for i, name in enumerate(names) if name in process.told), len(names))
        return place, process.rank is None, process.rank or 0

    return min(processes, key=key)


def _who(processes: Sequence[Process]) -> str:
    """Return whose traffic it is: hosts, as many as a sentence holds."""
    names = sorted({p.host for p in processes if p.host})
    if not names:
        return "traffic between nodes goes"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"traffic of {', '.join(names[:4])}{more} goes"
