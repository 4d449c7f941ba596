"""Rules on GPUDirect and on the ways between GPUs. Pure."""

from collections.abc import Iterator

from orchestrator.lint.case import Case
from orchestrator.lint.rule import GUIDE, Hit, number, rule

_LEVELS = {"0": "LOC", "1": "PIX", "2": "PXB", "3": "PHB", "4": "SYS"}
_WORDS = frozenset({"LOC", "NVL", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"})


@rule(
    "warn",
    why="a number is the old way to write a distance, which NVIDIA discourages; newer levels lie"
    " between the old ones",
    do="leave it unset: NCCL uses GPUDirect RDMA up to PXB by itself",
    source=GUIDE + ": NCCL_NET_GDR_LEVEL, NCCL_P2P_LEVEL",
)
def gdr_level_int(case: Case) -> Iterator[Hit]:
    """A level as a number, but for 0, which turns it off."""
    for one in case.named("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL"):
        value = number(one.value)
        if value is not None and value != 0:
            word = _LEVELS.get(one.value) if one.name == "NCCL_NET_GDR_LEVEL" else None
            meant = (
                f"; {one.value} stands for {word}, so write {word} if it must be" if word else ""
            )
            do = None if one.name == "NCCL_NET_GDR_LEVEL" else "leave it unset, or write the word"
            yield Hit(at=one, do=(do or gdr_level_int.do) + meant)


@rule(
    "error",
    why="this turns GPUDirect RDMA off: everything between nodes goes through host memory",
    do="remove it",
    source=GUIDE + ": NCCL_NET_GDR_LEVEL",
)
def gdr_level_off(case: Case) -> Iterator[Hit]:
    """LOC or 0, but on a site that has no GPUDirect anyway."""
    for one in case.named("NCCL_NET_GDR_LEVEL"):
        if one.value.upper() == "LOC" or number(one.value) == 0:
            yield Hit(at=one, level="info" if case.profile.fabric.gdr is False else None)


@rule(
    "error",
    why="this is no distance that NCCL knows",
    do="leave it unset, or use PIX, PXB, PHB or SYS",
    source=GUIDE + ": NCCL_NET_GDR_LEVEL, NCCL_P2P_LEVEL",
)
def level_unknown(case: Case) -> Iterator[Hit]:
    """A word that is no level."""
    for one in case.named("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL"):
        if number(one.value) is None and one.value.upper() not in _WORDS:
            yield Hit(at=one)


@rule(
    "error",
    why="this is for debugging: GPUs of a node then talk through host memory or the network instead"
    " of NVLink",
    do="remove it",
    source=GUIDE + ": NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_P2P_LEVEL",
)
def p2p_shm_disable(case: Case) -> Iterator[Hit]:
    """Peer-to-peer or shared memory turned off."""
    for one in case.named("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"):
        if number(one.value) not in (None, 0):
            yield Hit(at=one)
    for one in case.named("NCCL_P2P_LEVEL"):
        if one.value.upper() == "LOC" or number(one.value) == 0:
            yield Hit(at=one)


@rule(
    "warn",
    why="DMA-BUF turns itself off where it is missing; without it GPUDirect RDMA needs the module"
    " nvidia-peermem",
    do="remove it, unless ibv_reg_dmabuf_mr fails on these nodes",
    source=GUIDE + ": NCCL_DMABUF_ENABLE",
    advice=True,
)
def dmabuf_off(case: Case) -> Iterator[Hit]:
    """DMA-BUF turned off."""
    return (Hit(at=one) for one in case.named("NCCL_DMABUF_ENABLE") if number(one.value) == 0)


@rule(
    "warn",
    why="without NVLS the NVSwitches add nothing up, and all-reduce within a node is slower",
    do="remove it, unless to find a fault",
    source=GUIDE + ": NCCL_NVLS_ENABLE",
    advice=True,
)
def nvls_off(case: Case) -> Iterator[Hit]:
    """NVLink SHARP turned off."""
    return (Hit(at=one) for one in case.named("NCCL_NVLS_ENABLE") if number(one.value) == 0)


@rule(
    "info",
    why="the default, 2, is the same, but for 2.27 and 2.28, where it also goes on without NVLS if"
    " there is no memory for it",
    do="remove it",
    source=GUIDE + ": NCCL_NVLS_ENABLE",
)
def nvls_forced(case: Case) -> Iterator[Hit]:
    """NVLink SHARP forced on."""
    return (Hit(at=one) for one in case.named("NCCL_NVLS_ENABLE") if number(one.value) == 1)


@rule(
    "info",
    why="NCCL settles this by itself, better than a value that was right for another version",
    do="remove it, unless measurements on this cluster say otherwise",
    source=GUIDE,
)
def left_to_nccl(case: Case) -> Iterator[Hit]:
    """What NCCL finds out by itself on every modern version."""
    names = (
        "NCCL_CUMEM_ENABLE", "NCCL_CUMEM_HOST_ENABLE", "NCCL_IB_ADAPTIVE_ROUTING",
        "NCCL_IB_MERGE_NICS", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_NET_GDR_READ",
        "NCCL_IB_PCI_RELAXED_ORDERING",
    )  # fmt: skip
    return (Hit(at=one) for one in case.named(*names))


@rule(
    "warn",
    why="since 2.24 nothing takes the place of what was left out (before, Ring did), so init can"
    " fail, and NCCL no longer chooses by message size",
    do="remove it",
    source=GUIDE + ": NCCL_ALGO, NCCL_PROTO",
    advice=True,
)
def algo_proto_forced(case: Case) -> Iterator[Hit]:
    """An algorithm or protocol chosen by hand."""
    return (Hit(at=one) for one in case.named("NCCL_ALGO", "NCCL_PROTO"))


@rule(
    "error",
    why="LL128 needs 128-byte stores that arrive whole; forced where they do not, it corrupts data"
    " silently",
    do="remove it: NCCL uses LL128 where it is safe",
    source=GUIDE + ": NCCL_PROTO",
)
def ll128_forced(case: Case) -> Iterator[Hit]:
    """LL128 asked for, rather than excluded."""
    for one in case.named("NCCL_PROTO"):
        if "LL128" in one.value.upper() and not one.value.startswith("^"):
            yield Hit(at=one)
