"""The network adapters of this node, as the kernel shows them below /sys/class/infiniband.

A port that is down may be one that nobody ever plugged in, or the way to the storage. So what is
counted are the good ones, and the bad ones are named only where those are too few. NCCL leaves out
ports that are not active without a word.

Source: kernel, Documentation/ABI/stable/sysfs-class-infiniband.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Collector, Findings

SYSFS = Path("/sys/class/infiniband")
# The link layer of the ports that count; EFA's say "Unspecified".
_LAYERS = {"infiniband": "infiniband", "roce": "ethernet", "efa": "unspecified"}


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an adapter: state and link layer in small letters, rate in Gbit/s."""

    hca: str
    port: str
    state: str
    phys_state: str
    gbps: float | None
    layer: str

    def __str__(self) -> str:
        rate = f" at {self.gbps:g} Gbit/s" if self.gbps is not None else ""
        return f"{self.hca} port {self.port} is {self.state or 'unknown'}{rate}"


def read_ports(root: Path = SYSFS) -> list[Port]:
    """Return the ports of all adapters; none where the kernel shows none."""
    return [_port(path) for path in sorted(root.glob("*/ports/*"))]


def _port(path: Path) -> Port:
    return port(
        path.parents[1].name,
        path.name,
        state=_line(path / "state"),
        phys_state=_line(path / "phys_state"),
        rate=_line(path / "rate"),
        layer=_line(path / "link_layer"),
    )


def port(hca: str, number: str, *, state: str, phys_state: str, rate: str, layer: str) -> Port:
    """Return a port from the texts of its files.

    >>> port("mlx5_0", "1", state="4: ACTIVE", phys_state="5: LinkUp", rate="400 Gb/sec (4X NDR)",
    ...      layer="InfiniBand").gbps
    400.0
    """
    gbps = re.match(r"[\d.]+", rate)
    return Port(
        hca=hca,
        port=number,
        state=_after_number(state),
        phys_state=_after_number(phys_state),
        gbps=float(gbps[0]) if gbps else None,
        layer=layer.lower(),
    )


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _after_number(text: str) -> str:
    """Return the name of a state.

    >>> _after_number("4: ACTIVE")
    'active'
    """
    return text.partition(":")[2].strip().lower()


def judge(ports: Sequence[Port], expected: Expected) -> Findings:
    """Return whether the node has the adapters that the site's profile gives it."""
    found = Collector()
    layer = _LAYERS.get(expected.fabric)
    if layer is None:
        return found.findings()
    fabric = [port for port in ports if port.layer == layer]
    good = [port for port in fabric if _is_good(port, expected)]
    bad = [port for port in fabric if port not in good]
    count = len({port.hca for port in good})
    if expected.hcas is not None and count < expected.hcas:
        rate = f" at {expected.hca_gbps} Gbit/s" if expected.hca_gbps else ""
        found.problem("hcas", f"{count} of {expected.hcas} HCAs are active{rate}: {_listed(bad)}")
    elif expected.hcas is None and fabric and not any(p.state == "active" for p in fabric):
        found.problem("hcas", f"no port of the {expected.fabric} network is active: {_listed(bad)}")
    elif not fabric:
        found.note(f"the kernel shows no {expected.fabric} port here; is this a container?")
    for port in fabric:
        if port.phys_state == "linkup" and port.state == "init":
            found.note(f"{port}: the subnet manager has not seen it")
    return found.findings()


def _is_good(port: Port, expected: Expected) -> bool:
    fast = expected.hca_gbps is None or port.gbps is None or port.gbps >= expected.hca_gbps
    return port.state == "active" and fast


def _listed(ports: Sequence[Port]) -> str:
    return "; ".join(map(str, ports)) or "there are no more"
