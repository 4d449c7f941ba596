"""Rules on libfabric: EFA and Slingshot. Pure."""

from collections.abc import Iterator

from orchestrator.lint.case import Case
from orchestrator.lint.rule import Hit, number, rule

_AWS = "aws-samples/awsome-distributed-training, 1.architectures/efa-cheatsheet.md"
_CSCS = "eth-cscs/cscs-docs, docs/software/communication"
_PROVIDER = {"efa": "efa", "slingshot": "cxi"}


@rule(
    "error",
    why="RDMAV_* change how all of libibverbs handles fork(): memory registration gets slow, and"
    " children of data loaders can crash",
    do="remove it; kernels since 5.15 need no fork support",
    source=_AWS,
)
def rdmav(case: Case) -> Iterator[Hit]:
    """Any RDMAV_ variable: an error on EFA, a warning elsewhere."""
    level = None if case.fabric == "efa" else "warn"
    for one in case.named("RDMAV_*"):
        yield Hit(at=one, level="warn" if level else None)


@rule(
    "warn",
    why="libfabric 1.18 with aws-ofi-nccl 1.7 finds out by itself whether the NIC can do RDMA",
    do="remove it",
    source=_AWS,
)
def efa_stale(case: Case) -> Iterator[Hit]:
    """Device RDMA forced on."""
    for one in case.named("FI_EFA_USE_DEVICE_RDMA"):
        if number(one.value) != 0:
            yield Hit(at=one)


@rule(
    "error",
    why="this turns RDMA off: everything between nodes goes through host memory",
    do="remove it",
    source="libfabric, fi_efa(7)",
)
def efa_rdma_off(case: Case) -> Iterator[Hit]:
    """Device RDMA turned off."""
    if case.fabric == "efa":
        for one in case.named("FI_EFA_USE_DEVICE_RDMA"):
            if number(one.value) == 0:
                yield Hit(at=one)


@rule(
    "info",
    why="it does nothing any more",
    do="remove it",
    source=_AWS,
)
def efa_idle(case: Case) -> Iterator[Hit]:
    """What is left over from older versions."""
    return (Hit(at=one) for one in case.named("FI_EFA_ENABLE_SHM_TRANSFER", "FI_EFA_FORK_SAFE"))


@rule(
    "info",
    why="it is a workaround for an EFA installer before 1.29.1 with NCCL 2.19 and later",
    do="remove it with a newer installer",
    source=_AWS,
)
def efa_sync_memops(case: Case) -> Iterator[Hit]:
    """Synchronous memory operations turned off."""
    return (Hit(at=one) for one in case.named("FI_EFA_SET_CUDA_SYNC_MEMOPS"))


@rule(
    "info",
    why="with huge pages a fork() in a data loader can fail for want of memory",
    do="set FI_EFA_USE_HUGE_PAGE=0",
    source=_AWS,
)
def efa_huge_pages(case: Case) -> Iterator[Hit]:
    """Huge pages left on, on EFA."""
    if case.fabric != "efa":
        return
    given = list(case.named("FI_EFA_USE_HUGE_PAGE"))
    for one in given:
        if number(one.value) != 0:
            yield Hit(at=one, level="warn")
    if not given:
        yield Hit(at=case.place("fabric.kind", case.fabric))


@rule(
    "warn",
    why="aws-ofi-nccl sets what is right for the instance since 1.5; a value from elsewhere is"
    " slower",
    do="remove it",
    source=_AWS,
    advice=True,
)
def efa_tuned_by_hand(case: Case) -> Iterator[Hit]:
    """Buffers and channels chosen by hand on EFA."""
    if case.fabric == "efa":
        for one in case.named("NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS"):
            yield Hit(at=one)


@rule(
    "error",
    why="libfabric would use another provider than the site's network",
    do="remove it",
    source="libfabric, fabric(7): FI_PROVIDER",
)
def wrong_provider(case: Case) -> Iterator[Hit]:
    """A provider that is not the network's; ^ takes providers out."""
    wanted = _PROVIDER.get(case.fabric)
    for one in case.named("FI_PROVIDER"):
        listed = one.value.lower().lstrip("^").split(",")
        named = any(name.split(";")[0] == wanted for name in listed)
        if wanted and named == one.value.startswith("^"):
            yield Hit(at=one, why=f"{wrong_provider.why}, which is {wanted}")


@rule(
    "info",
    why="aws-ofi-nccl needs it up to 1.5 only",
    do="leave it out; it does no harm",
    source=_AWS,
)
def provider_needless(case: Case) -> Iterator[Hit]:
    """The right provider, which is found anyway."""
    if case.fabric == "efa":
        yield from (Hit(at=one) for one in case.named("FI_PROVIDER") if one.value.lower() == "efa")


@rule(
    "info",
    why="the default monitor of libfabric's registration cache can deadlock with CUDA's allocator",
    do="set FI_MR_CACHE_MONITOR=userfaultfd, or what the site says",
    source=_CSCS + "/nccl_env_vars",
)
def mr_cache_monitor(case: Case) -> Iterator[Hit]:
    """No monitor chosen on Slingshot, and no script or module that may choose it."""
    profile = case.profile
    may_be_set = profile.scripts or profile.modules or any(case.named("FI_MR_CACHE_MONITOR"))
    if case.fabric == "slingshot" and not may_be_set:
        yield Hit(at=case.place("fabric.kind", case.fabric))
