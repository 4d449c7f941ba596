"""Rules on names: variables that nobody reads. Pure."""

import re
from collections.abc import Iterator

from orchestrator.lint.case import Case, Setting
from orchestrator.lint.nccl_variables import NEWEST, Known, known, near
from orchestrator.lint.rule import NCCL, Hit, rule

# Often seen, never there (0 hits in the sources), and what was meant.
_INSTEAD = {
    "NCCL_TIMEOUT": "the time-out of collectives is torch's: init_process_group(timeout=...), or"
    " train.timeouts of the job file for fsdpq's own trainer",
    "NCCL_SOCKET_TIMEOUT": "remove it; NCCL_SOCKET_RETRY_CNT (2.24) is the nearest there is",
    "NCCL_NET_MAX_REQUESTS": "remove it; it is a constant in NCCL's sources",
    "NCCL_IB_CUDA_SUPPORT": "remove it; GPUDirect RDMA is on by itself (it went with NCCL 2.4)",
    "NCCL_IB_GDR_LEVEL": "remove it; since NCCL 2.4 it is NCCL_NET_GDR_LEVEL, best left unset",
    "NCCL_TREE_THRESHOLD": "remove it; NCCL chooses the algorithm itself since 2.5",
    "NCCL_LL_THRESHOLD": "remove it; NCCL chooses the protocol itself since 2.5",
    "NCCL_RINGS": "remove it; NCCL finds its rings itself since 2.5",
}
# torch's, which got a TORCH_ in front with torch 2.2.
_TORCH = frozenset(
    {
        "NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_AVOID_RECORD_STREAMS",
        "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING", "NCCL_TRACE_BUFFER_SIZE",
    }
)  # fmt: skip
# Read by network and tuner plug-ins (TCPX, FasTrak, gIB, HPC-X, SHARP), by installers and images,
# or a value of NCCL's own in its documentation.
_OTHERS = re.compile(
    r"NCCL_(GPUDIRECTTCPX|FASTRAK|GIB|SHIMNET|SHARP|IBEXT|UCX|UCT|PLUGIN|TUNER|PROFILER|TESTS|OFI)_\w+"
    r"|NCCL_(DYNAMIC_CHUNK_SIZE|HOME|ROOT|ROOT_DIR|DIR|VERSION|LIB|LIB_DIR|LIBRARY|INCLUDE_DIR)"
)


def _of_nccl(case: Case) -> Iterator[Setting]:
    for one in case.named("NCCL_*"):
        if one.name not in _TORCH and not _OTHERS.fullmatch(one.name):
            yield one


@rule(
    "warn",
    why="no NCCL from 2.18 to 2.30 reads such a variable, so it does nothing",
    do="remove it",
    source=NCCL,
)
def not_an_nccl_var(case: Case) -> Iterator[Hit]:
    """A name that NCCL never knew."""
    version = case.around.version
    newer = version is not None and version[:2] > NEWEST[:2]
    for one in _of_nccl(case):
        if one.name not in known():
            guess = near(one.name)
            do = _INSTEAD.get(one.name) or (
                f"write {guess}, if that is what you meant" if guess else None
            )
            yield Hit(at=one, do=do, level="info" if newer else None)


@rule(
    "warn",
    why="this NCCL does not read it",
    do="remove it, or use an NCCL that has it",
    source=NCCL,
)
def not_in_this_nccl(case: Case) -> Iterator[Hit]:
    """A name that came later, or has gone."""
    for one in _of_nccl(case):
        found = known().get(one.name)
        if found and (why := _absent(found, case)):
            yield Hit(at=one, why=why)


def _absent(found: Known, case: Case) -> str | None:
    version = case.around.version
    first, last = (".".join(map(str, at)) for at in (found.first, found.last))
    if version is None:
        return None if found.current else f"NCCL reads it no more; it was last seen in {last}"
    this = ".".join(map(str, version))
    if found.too_new_for(version):
        return f"NCCL {this} does not read it yet; it was first seen in {first}"
    if found.gone_in(version):
        return f"NCCL {this} reads it no more; it was last seen in {last}"
    return None


@rule(
    "info",
    why="this is an old name of PyTorch's; NCCL never reads it, and torch warns of it",
    do="write it with TORCH_ in front, if it is needed at all",
    source="torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, torch 2.2 and later",
)
def torch_legacy_var(case: Case) -> Iterator[Hit]:
    """A variable of torch's by the name it had before torch 2.2."""
    return (Hit(at=one) for one in case.named(*_TORCH))
