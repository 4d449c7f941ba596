"""Rules on which network NCCL takes, and on which interfaces. Pure."""

from collections.abc import Iterator

from orchestrator.lint.case import Case, Setting
from orchestrator.lint.lists import NameList, name_list
from orchestrator.lint.rule import GUIDE, NCCL, Hit, number, rule

_FAST = frozenset({"infiniband", "roce", "efa", "slingshot", "omnipath", "tcpx", "tcpxo"})
_BY_PLUGIN = frozenset({"efa", "slingshot", "tcpx", "tcpxo"})
_NEVER = ("lo", "docker", "virbr", "veth")
# What the transports of one network read alone.
_OF_FABRIC = {
    "NCCL_GPUDIRECTTCPX_*": ("tcpx",),
    "NCCL_FASTRAK_*": ("tcpxo",),
    "FI_EFA_*": ("efa",),
    "FI_CXI_*": ("slingshot",),
    "NCCL_IB_*": ("infiniband", "roce", "omnipath"),
}


@rule(
    "info",
    why="where the fast network fails NCCL goes on over IP sockets, many times slower, without"
    " an error",
    do="set NCCL_NET to the network's name in env_multi_node: then that ends the job at its start",
    source=GUIDE + ": NCCL_NET",
)
def net_not_pinned(case: Case) -> Iterator[Hit]:
    """No NCCL_NET for several nodes, and no script or module of the site that may set it."""
    profile = case.profile
    may_be_set = profile.scripts or profile.modules or any(case.named("NCCL_NET"))
    if case.several_nodes and case.fabric in _FAST and not may_be_set:
        name = profile.fabric.names[0] if profile.fabric.names else "the name in NCCL's log"
        do = f"{net_not_pinned.do}; here it is {name.removesuffix('*')}"
        yield Hit(at=case.place("fabric.kind", case.fabric), do=do)


@rule(
    "error",
    why="this is not the network of this site",
    do="remove it, or use the name in NCCL's log",
    source=GUIDE + ": NCCL_NET",
)
def wrong_net(case: Case) -> Iterator[Hit]:
    """Another network than the site has; NCCL compares whole names, in any case."""
    names = case.profile.fabric.names
    for one in case.named("NCCL_NET"):
        if names and not any(_same(one.value, name) for name in names):
            yield Hit(
                at=one, why=_why_wrong(case, one), do=f"remove it, or use {' or '.join(names)}"
            )


def _same(given: str, name: str) -> bool:
    given, name = given.lower(), name.lower()
    return given.startswith(name[:-1]) and "*" not in given if name[-1:] == "*" else given == name


def _why_wrong(case: Case, one: Setting) -> str:
    if one.value.lower() == "socket" and case.fabric in _FAST:
        return f"this has NCCL train over IP sockets although the site has {case.fabric}"
    return f"the site's network is {case.fabric}; NCCL ends with an error where it has no such one"


@rule(
    "error",
    why="this network needs its plug-in: without it NCCL trains over IP sockets",
    do="remove it",
    source=GUIDE + ": NCCL_NET_PLUGIN",
)
def plugin_off(case: Case) -> Iterator[Hit]:
    """No plug-in where the network is one."""
    if case.fabric in _BY_PLUGIN:
        for one in case.named("NCCL_NET_PLUGIN"):
            if one.value.lower() == "none":
                yield Hit(at=one)


@rule(
    "warn",
    why="the short name ofi has NCCL find another library than the site's own (a known issue of the"
    " uenv of CSCS)",
    do='remove it; NCCL_NET="AWS Libfabric" is enough',
    source="eth-cscs/cscs-docs, docs/software/communication/nccl.md",
    advice=True,
)
def ofi_by_suffix(case: Case) -> Iterator[Hit]:
    """The plug-in of Slingshot by its suffix."""
    if case.fabric == "slingshot":
        for one in case.named("NCCL_NET_PLUGIN"):
            if one.value.lower() == "ofi":
                yield Hit(at=one)


@rule(
    "info",
    why="what reads it is not this site's network",
    do="remove it",
    source=NCCL + "; libfabric's fi_efa(7) and fi_cxi(7)",
)
def of_another_network(case: Case) -> Iterator[Hit]:
    """A variable for a network that the site does not have."""
    if case.fabric == "unknown":
        return
    for names, kinds in _OF_FABRIC.items():
        if case.fabric not in kinds:
            for one in case.named(names):
                level = None if names == "NCCL_IB_*" else "warn"
                why = f"only {' and '.join(kinds)} read it, and the site's network is {case.fabric}"
                yield Hit(at=one, why=why, level="warn" if level else None)


@rule(
    "error",
    why="the other nodes cannot be reached over such an interface",
    do="name the interface that leads to the other nodes, or leave it unset",
    source=GUIDE + ": NCCL_SOCKET_IFNAME; NCCL itself passes over lo and docker*",
)
def ifname_of_one_node(case: Case) -> Iterator[Hit]:
    """Loopback or a bridge, for several nodes."""
    if not case.several_nodes:
        return
    for one in case.named("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        given = name_list(one.value)
        if not given.excludes and all(name.startswith(_NEVER) for name in given.names):
            yield Hit(at=one)


@rule(
    "error",
    why="the list holds something that is no name: blanks, an empty entry, or a mark that counts"
    " only in front of the whole list",
    do="write it as eth0, =eth0,eth1 or ^docker,lo",
    source=GUIDE + ": NCCL_SOCKET_IFNAME",
)
def ifname_malformed(case: Case) -> Iterator[Hit]:
    """A list of interfaces that cannot be read."""
    for one in case.named("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME"):
        if bad := name_list(one.value).malformed():
            yield Hit(at=one, why=f"{bad[0]!r}: {ifname_malformed.why}")


@rule(
    "error",
    why="Gloo takes whole names of interfaces: it knows neither ^ nor = and reads no beginnings",
    do="write the whole name, such as ib0, or leave it unset",
    source="torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
)
def ifname_not_for_gloo(case: Case) -> Iterator[Hit]:
    """NCCL's marks in Gloo's variable."""
    for one in case.named("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        if one.value.startswith(("^", "=")):
            yield Hit(at=one)


@rule(
    "warn",
    why="no interface of the nodes matches, so NCCL ends with 'no socket interface found'",
    do="correct the list, or leave it unset",
    source=GUIDE + ": NCCL_SOCKET_IFNAME",
)
def ifname_matches_nothing(case: Case) -> Iterator[Hit]:
    """A list that no known interface is in; a login node's say little about compute nodes."""
    there = case.around.interfaces
    if not there:
        return
    for one in case.named("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "GLOO_SOCKET_IFNAME"):
        given = name_list(one.value)
        if one.name.startswith("GLOO"):
            given = NameList(False, True, given.entries)
        if not any(given.matches(name) for name in there):
            listed = ", ".join(there)
            if case.around.of_node:
                yield Hit(at=one, why=f"{ifname_matches_nothing.why} (they have {listed})")
            else:
                why = (
                    f"no interface of this machine matches it ({listed}); do the nodes have others?"
                )
                yield Hit(at=one, why=why, level="info")


@rule(
    "error",
    why="it must be 0, 1 or 2",
    do="leave it unset (2), or 0 where each rail has a switch of its own",
    source=GUIDE + ": NCCL_CROSS_NIC",
)
def cross_nic_range(case: Case) -> Iterator[Hit]:
    """A value that NCCL does not know."""
    return (
        Hit(at=one) for one in case.named("NCCL_CROSS_NIC") if number(one.value) not in (0, 1, 2)
    )
