"""Rules on InfiniBand and RoCE: HCAs, GIDs, time-outs. Pure.

Nothing here is for Omni-Path: its HCAs are no mlx5 ones, and NCCL's IB transport is not what
carries the data there.
"""

from collections.abc import Iterator

from orchestrator.lint.case import Case, Setting
from orchestrator.lint.lists import name_list, worst_prefix
from orchestrator.lint.rule import GUIDE, NCCL, Hit, number, rule

_VERBS = frozenset({"infiniband", "roce", "unknown"})
_MOST_HCAS = 32
# Smallest and largest value that makes sense; -1 and -2 are "as NCCL likes".
_RANGES = {
    "NCCL_IB_QPS_PER_CONNECTION": (1, 128),
    "NCCL_IB_SL": (-1, 15),
    "NCCL_IB_TC": (-1, 255),
    "NCCL_IB_FIFO_TC": (-1, 255),
    "NCCL_IB_GID_INDEX": (-1, 255),
    "NCCL_IB_PCI_RELAXED_ORDERING": (0, 2),
    "NCCL_IB_ADAPTIVE_ROUTING": (-2, 1),
}


def _verbs(case: Case, *names: str) -> Iterator[Setting]:
    """Yield what is set under ``names`` where NCCL's IB transport is used."""
    if case.fabric in _VERBS:
        yield from case.named(*names)


def _outside(one: Setting, least: int, most: int) -> bool:
    value = number(one.value)
    return value is None or not least <= value <= most


@rule(
    "warn",
    why="GIDs are chosen on RoCE only; on InfiniBand NCCL goes by LIDs, and an index that a port"
    " does not have can end the job (ibv_modify_qp: EINVAL). Since 2.21 it should not be set at"
    " all",
    do="remove it",
    source=GUIDE + ": NCCL_IB_GID_INDEX; NVIDIA/nccl 2.30.7, hints of net_ib",
)
def gid_index_on_ib(case: Case) -> Iterator[Hit]:
    """A GID index on InfiniBand."""
    if case.fabric == "infiniband":
        for one in case.named("NCCL_IB_GID_INDEX"):
            yield Hit(at=one)


@rule(
    "warn",
    why="NCCL finds the GID index of each port by itself, and one number is rarely right for all"
    " nodes",
    do="remove it; steer the choice with NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE or"
    " NCCL_IB_ROCE_VERSION_NUM where that is needed",
    source=GUIDE + ': NCCL_IB_GID_INDEX, which "should not be set" since 2.21',
    since="2.21",
    advice=True,
)
def gid_index_forced(case: Case) -> Iterator[Hit]:
    """A GID index on anything else; -1 is the default."""
    if case.fabric != "infiniband":
        for one in _verbs(case, "NCCL_IB_GID_INDEX"):
            if number(one.value) != -1:
                yield Hit(at=one)


@rule(
    "warn",
    why="names are read as beginnings",
    do="put = in front of the list, once",
    source=GUIDE + ": NCCL_IB_HCA",
)
def hca_prefix(case: Case) -> Iterator[Hit]:
    """A list of HCAs whose names are beginnings of others."""
    for one in _verbs(case, "NCCL_IB_HCA"):
        if names := name_list(one.value).open_ended():
            name = worst_prefix(names)
            others = f"{name} also matches {name}0 to {name}9"
            why = others if not name.endswith("_0") else f"{name} is read as a beginning"
            verb = ", which are left out too" if one.value.startswith("^") else ""
            yield Hit(at=one, why=f"without = {why}{verb}")


@rule(
    "error",
    why="the list holds something that is no HCA: blanks, an empty entry, or a mark that counts"
    " only in front of the whole list",
    do="write it as =mlx5_0,mlx5_1 or ^=mlx5_2",
    source=NCCL + ": parseStringList",
)
def hca_malformed(case: Case) -> Iterator[Hit]:
    """A list of HCAs that cannot be read."""
    for one in _verbs(case, "NCCL_IB_HCA"):
        if bad := name_list(one.value).malformed():
            yield Hit(at=one, why=f"{bad[0]!r}: {hca_malformed.why}")


@rule(
    "error",
    why="NCCL takes at most 32 HCAs and drops the others without a word, or crashes",
    do="list the HCAs that belong to GPUs, at most 32",
    source=NCCL + ": MAX_IB_DEVS; NVIDIA/nccl#2282",
)
def hca_too_many(case: Case) -> Iterator[Hit]:
    """More HCAs than NCCL has room for."""
    for one in _verbs(case, "NCCL_IB_HCA"):
        if len(name_list(one.value).entries) > _MOST_HCAS:
            yield Hit(at=one)


@rule(
    "warn",
    why="an HCA stands in the list twice",
    do="list each once",
    source=GUIDE + ": NCCL_IB_HCA",
)
def hca_twice(case: Case) -> Iterator[Hit]:
    """An HCA that is listed twice."""
    for one in _verbs(case, "NCCL_IB_HCA"):
        if names := name_list(one.value).twice():
            yield Hit(at=one, why=f"{names[0]} stands in the list twice")


@rule(
    "warn",
    why="the list and the profile's hcas_per_node do not agree; with fewer HCAs the bandwidth"
    " between nodes is lower, and nothing says so",
    do="list them all, or correct fabric.hcas_per_node",
    source=GUIDE + ": NCCL_IB_HCA",
)
def hca_count(case: Case) -> Iterator[Hit]:
    """An exact list that is longer or shorter than the node's HCAs."""
    wanted = case.profile.fabric.hcas_per_node
    for one in _verbs(case, "NCCL_IB_HCA"):
        given = name_list(one.value)
        found = len(set(given.entries))
        if wanted and given.exact and not given.excludes and found != wanted:
            yield Hit(
                at=one, why=f"{found} HCAs are listed and a node has {wanted}: {hca_count.why}"
            )


@rule(
    "error",
    why="the range is 1 to 31; 0, 32 and more mean for ever, so that a dead link hangs the job, and"
    " others are cut to the bits that fit",
    do="leave it unset (20 since 2.23, half a minute with 7 retries), or 22 for two minutes",
    source=GUIDE + ": NCCL_IB_TIMEOUT; InfiniBand specification, local ACK timeout",
)
def ib_timeout_range(case: Case) -> Iterator[Hit]:
    """A time-out that the HCA cannot have."""
    for one in _verbs(case, "NCCL_IB_TIMEOUT"):
        if _outside(one, 1, 31):
            yield Hit(at=one)


@rule(
    "info",
    why="each step doubles the time: 18 to 22 is what NCCL and vendors use; below, a flapping link"
    " ends the job, above, a dead one is noticed only after many minutes",
    do="leave it unset, or 22",
    source=GUIDE + ": NCCL_IB_TIMEOUT; the default is 18 since 2.14 and 20 since 2.23",
)
def ib_timeout_unusual(case: Case) -> Iterator[Hit]:
    """A time-out far from the usual."""
    for one in _verbs(case, "NCCL_IB_TIMEOUT"):
        value = number(one.value)
        if value is not None and (1 <= value < 18 or 22 < value <= 31):
            yield Hit(at=one)


@rule(
    "error",
    why="the range is 0 to 7: the HCA has three bits for it",
    do="leave it unset (7); for longer waits raise NCCL_IB_TIMEOUT",
    source=GUIDE + ": NCCL_IB_RETRY_CNT",
)
def ib_retry_range(case: Case) -> Iterator[Hit]:
    """A number of retries that the HCA cannot have."""
    for one in _verbs(case, "NCCL_IB_RETRY_CNT"):
        if _outside(one, 0, 7):
            yield Hit(at=one)


@rule(
    "error",
    why="NCCL has no use for this value",
    do="correct or remove it",
    source=GUIDE,
)
def number_range(case: Case) -> Iterator[Hit]:
    """A number out of its range."""
    for one in _verbs(case, *_RANGES):
        least, most = _RANGES[one.name]
        if _outside(one, least, most):
            yield Hit(at=one, why=f"it must be a whole number from {least} to {most}")


@rule(
    "error",
    why="this has NCCL leave the fast network and train over IP sockets, many times slower",
    do="remove it",
    source=GUIDE + ": NCCL_IB_DISABLE",
)
def ib_disable(case: Case) -> Iterator[Hit]:
    """InfiniBand or RoCE turned off where it is the network."""
    if case.fabric in ("infiniband", "roce"):
        for one in case.named("NCCL_IB_DISABLE"):
            if number(one.value) not in (None, 0):
                yield Hit(at=one)


@rule(
    "info",
    why="0 is the default and turns nothing on: where no HCA is usable NCCL goes on over sockets"
    " all the same",
    do="remove it; NCCL_NET=IB is what makes that an error",
    source=GUIDE + ": NCCL_IB_DISABLE, NCCL_NET",
)
def ib_disable_zero(case: Case) -> Iterator[Hit]:
    """The default, written out."""
    return (Hit(at=one) for one in _verbs(case, "NCCL_IB_DISABLE") if number(one.value) == 0)
