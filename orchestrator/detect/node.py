"""What the probe printed on a compute node, as values. Pure.

Every part may be missing: a node without nvidia-smi, a container without /sys.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.preflight.hcas import Port, port

_LABEL = re.compile(r"\s*(\d+): ?(.*)")
_HEAD = re.compile(r"@@ ([a-z-]+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# As nvidia-smi topo -m has it, from the nearest on.
DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A compute node, as a job sees it.

    Attributes:
        gpus: Name and MiB of each.
        nearest: For each GPU the distance to the nearest adapter, as nvidia-smi calls it.
        peermem: Whether a module for peer memory is loaded.
        dmabuf: Whether the driver and the kernel can do without it.
        limits: Of `ulimit`, by its letter.
        present: Paths that tell of a kind of network.
        vendor: Whose machine it is, as its firmware says.
        answers: The HTTP status of the metadata service, by cloud.
        mounts: Kind of the file system by folder.
        shm_kib: Size of /dev/shm.
        nccl_conf: Lines of /etc/nccl.conf.
    """

    host: str
    arch: str = ""
    gpus: tuple[tuple[str, int], ...] = ()
    nearest: tuple[str, ...] = ()
    peermem: bool = False
    dmabuf: bool = False
    ports: tuple[Port, ...] = ()
    interfaces: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    present: tuple[str, ...] = ()
    vendor: str = ""
    answers: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    shm_kib: int | None = None
    nccl_conf: tuple[str, ...] = ()


def nodes(text: str) -> tuple[Node, ...]:
    """Return the nodes that answered, in the order of their tasks."""
    said: dict[int, list[str]] = {}
    for line in text.splitlines():
        if found := _LABEL.fullmatch(_COLOUR.sub("", line)):
            said.setdefault(int(found[1]), []).append(found[2].rstrip())
    parts = (_sections(said[task]) for task in sorted(said))
    return tuple(_node(part) for part in parts if part.get("host"))


def _sections(lines: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    inside: list[str] = []  # what stands before the first head is a greeting of the site
    for line in lines:
        if head := _HEAD.fullmatch(line):
            inside = found.setdefault(head[1], [])
        elif line.strip():
            inside.append(line)
    return found


def _node(part: Mapping[str, Sequence[str]]) -> Node:
    def lines(name: str) -> Sequence[str]:
        return part.get(name, ())

    kernel = " ".join(lines("kernel"))
    return Node(
        host=lines("host")[0].strip(),
        arch=kernel.split()[-1] if kernel else "",
        gpus=tuple(_gpu(line) for line in lines("gpus") if _gpu(line)[1]),
        nearest=nearest(lines("topology")),
        peermem=bool(lines("peermem")),
        dmabuf=has_dmabuf(kernel, lines("driver")),
        ports=tuple(_port(line) for line in lines("ports") if line.count("|") == 5),
        interfaces=tuple(_interface(line) for line in lines("interfaces")),
        limits=_pairs(lines("limits")),
        present=tuple(line.strip() for line in lines("present")),
        vendor=" ".join(" ".join(lines("vendor")).split()),
        answers=_pairs(lines("metadata")),
        mounts=_pairs(lines("mounts")),
        shm_kib=_number(_pairs(lines("shm")).get("kib", "")),
        nccl_conf=tuple(line.strip() for line in lines("nccl-conf") if line.strip()[0] != "#"),
    )


def _interface(line: str) -> str:
    """Return an interface without the speed -1, which stands for one that is not known."""
    return " ".join(word for word in line.split() if word != "-1")


def _pairs(lines: Sequence[str]) -> dict[str, str]:
    split = (line.strip().partition("=") for line in lines)
    return {name: value.strip() for name, equals, value in split if equals}


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _gpu(line: str) -> tuple[str, int]:
    """Return name and MiB from a row of nvidia-smi's CSV.

    >>> _gpu("NVIDIA H100 80GB HBM3, 81559 MiB"), _gpu("No devices were found")
    (('H100 80GB HBM3', 81559), ('', 0))
    """
    found = re.fullmatch(r"\s*(?:NVIDIA )?(.+), (\d{1,9})(?: MiB)?\s*", line)
    return (found[1], int(found[2])) if found else ("", 0)


def _port(line: str) -> Port:
    hca, number, state, phys_state, rate, layer = line.split("|")
    return port(hca.strip(), number, state=state, phys_state=phys_state, rate=rate, layer=layer)


def has_dmabuf(kernel: str, driver: Sequence[str]) -> bool:
    """Return whether GPUDirect works by DMA-BUF: Linux 5.12 and NVIDIA's open kernel modules.

    Source: docs.nvidia.com, GPUDirect RDMA, "Supported systems".

    >>> has_dmabuf("Linux 5.14.0-427 x86_64", ["NVRM version: NVIDIA UNIX Open Kernel Module"])
    True
    """
    found = re.search(r"\b(\d{1,4})\.(\d{1,4})\.", kernel)
    new = found is not None and (int(found[1]), int(found[2])) >= (5, 12)
    return new and any("open kernel module" in line.lower() for line in driver)


def nearest(lines: Sequence[str]) -> tuple[str, ...]:
    r"""Return for each GPU the distance to its nearest adapter, from `nvidia-smi topo -m`.

    >>> nearest(["\tGPU0\tGPU1\tNIC0\tNIC1", "GPU0\t X \tNV18\tPIX\tSYS", "GPU1\tNV18\t X \tSYS\tNODE"])
    ('PIX', 'NODE')
    """  # noqa: E501
    rows = [line.split() for line in lines]
    head = next((row for row in rows if row and row[0] == "GPU0"), None)
    if head is None:
        return ()
    adapters = [i for i, name in enumerate(head) if _is_adapter(name)]
    found = []
    for row in rows[rows.index(head) + 1 :]:
        if row and re.fullmatch(r"GPU\d+", row[0]):
            cells = [row[i + 1] for i in adapters if i + 1 < len(row)]
            known = [cell for cell in cells if cell in DISTANCES]
            found.append(min(known, key=DISTANCES.index, default=""))
    return tuple(found) if adapters else ()


def _is_adapter(name: str) -> bool:
    return bool(re.fullmatch(r"NIC\d+|(mlx|bnxt|irdma|efa|rdmap|hfi|ib)\w*", name))
