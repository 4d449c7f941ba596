"""Is the network between nodes what it should be, and if not, why. Pure.

Sources: the user guide of NCCL 2.30 (env.rst, troubleshooting.rst), and what the issues cited in
`orchestrator.evidence.nccl` came to.
"""

from collections import Counter
from collections.abc import Sequence

from orchestrator.fabric import hosts as by_host
from orchestrator.fabric.clues import SETUP, Clue
from orchestrator.fabric.diagnosis import Diagnosis, Word
from orchestrator.fabric.hosts import Host
from orchestrator.fabric.network import Process, Told
from orchestrator.fabric.promise import SOCKET, Promise
from orchestrator.fabric.reasons import (
    OVER_SOCKETS,
    PROVIDERS,
    Reason,
    few_hcas,
    mixed_layers,
    no_gdr,
    other_net,
    other_provider,
    sockets,
)
from orchestrator.rundir.cause import Cause


def judge(
    processes: Sequence[Process],
    clues: Sequence[Clue],
    promise: Promise | None = None,
    *,
    version: str = "",
    well: bool = False,
    nodes: int | None = None,
) -> Diagnosis:
    """Return what is to be said.

    Args:
        processes: Who was heard of.
        clues: The errors, the root cause first.
        promise: What the site promises; None where that is not known.
        version: NCCL's.
        well: Whether it is known that what wrote the logs ended well, or lives.
        nodes: How many nodes there are, where that is known.
    """
    told = [p for p in processes if p.network]
    hosts = by_host.gather(processes)
    alone = _alone(processes, nodes)
    word, reason, suspects = _network(told, hosts, promise, alone=alone)
    failures, remarks = ([], list(clues)) if well else _parted(clues, told)
    gdr = None if alone else _gdr(told)
    return Diagnosis(
        verdict="failed" if failures else word,
        fabric=word,
        network=_worst(told),
        hcas=min((host.hcas for host in hosts if host.hcas is not None), default=None),
        gdr=gdr,
        version=version,
        provider=next((p.provider for p in processes if p.provider), ""),
        channels=(sum(p.channels[0] for p in told), sum(p.channels[1] for p in told)),
        layers=_layers(processes),
        reason=_explained(reason, clues),
        clues=(*failures, *remarks),
        hosts=tuple(hosts),
        suspects=suspects,
        processes=len(processes),
        promise=promise,
        notes=tuple(_notes(told, promise, gdr, alone=alone)),
    )


def _parted(clues: Sequence[Clue], told: Sequence[Process]) -> tuple[list[Clue], list[Clue]]:
    """Return the errors that ended something, and the others."""
    up = any(p.networks or p.gdr or p.plain for p in told)
    fails = [_fails(clue, up=up) for clue in clues]
    failures = [clue for clue, ended in zip(clues, fails, strict=True) if ended]
    return failures, [clue for clue, ended in zip(clues, fails, strict=True) if not ended]


def _fails(clue: Clue, *, up: bool) -> bool:
    """Return whether an error ended something; ``up`` is whether a network came up after all."""
    found = clue.finding
    if found.cause is Cause.NOTICE or found.kind == "nccl_warn":
        return False
    return not (up and found.kind in SETUP)


def _alone(processes: Sequence[Process], nodes: int | None) -> bool:
    """Return whether all of it is on one node, so that no network is needed."""
    if nodes is not None:
        return nodes == 1
    told = [p.nodes for p in processes if p.nodes is not None]
    return bool(told) and max(told) == 1 and not any(p.channels[1] for p in processes)


def _layers(processes: Sequence[Process]) -> tuple[str, ...]:
    return tuple(sorted({layer for p in processes for layer in (p.hcas or {}).values()}))


def _worst(told: Sequence[Process]) -> str:
    names = Counter(p.network for p in told)
    return SOCKET if SOCKET in names else max(names, key=names.__getitem__, default="")


def _gdr(told: Sequence[Process]) -> bool | None:
    proofs = [p.has_gdr for p in told if p.has_gdr is not None]
    return all(proofs) if proofs else None


Judged = tuple[Word, Reason | None, tuple[str, ...]]


def _network(
    told: Sequence[Process], hosts: Sequence[Host], promise: Promise | None, *, alone: bool
) -> Judged:
    """Return the verdict on the network, why, and the hosts that it speaks against."""
    if not told:
        return "unknown", None, ()
    if alone or (promise is not None and not promise.rdma):
        return "ok", None, ()
    if bad := [p for p in told if p.network == SOCKET and not _meant(p, promise)]:
        return "socket_fallback", sockets(bad, promise), _some(bad, hosts)
    if bad := [p for p in told if p.provider.startswith(OVER_SOCKETS)]:
        return "socket_fallback", other_provider(bad, promise), _some(bad, hosts)
    wanted = promise is None or promise.gdr is not False
    if wanted and (bad := [p for p in told if p.has_gdr is False and p.network != SOCKET]):
        return "no_gdr", no_gdr(bad), _some(bad, hosts)
    return _degraded(told, hosts, promise) or ("ok", None, ())


def _meant(process: Process, promise: Promise | None) -> bool:
    return promise is not None and promise.names(process.network)


def _degraded(
    told: Sequence[Process], hosts: Sequence[Host], promise: Promise | None
) -> Judged | None:
    expected = by_host.expected_hcas(hosts, promise)
    if few := [host for host in hosts if host.hcas is not None and host.hcas < (expected or 0)]:
        some = tuple(host.name for host in few) if len(few) < len(hosts) else ()
        return "degraded", few_hcas(few, expected or 0, told, all_of=not some), some
    if mixed := [p for p in told if len(set((p.hcas or {}).values())) > 1]:
        return "degraded", mixed_layers(mixed[0], promise), ()
    right = PROVIDERS.get(promise.kind, "") if promise else ""
    if bad := [p for p in told if p.provider and not p.provider.startswith(right)]:
        return "degraded", other_provider(bad, promise), _some(bad, hosts)
    if promise and (bad := [p for p in told if not promise.names(p.network)]):
        return "degraded", other_net(bad[0], promise), _some(bad, hosts)
    return None


def _some(bad: Sequence[Process], hosts: Sequence[Host]) -> tuple[str, ...]:
    """Return the hosts of processes, unless they are all there are, or not known."""
    names = dict.fromkeys(p.host for p in bad)
    others = {host.name for host in hosts if host.name} - set(names)
    return tuple(names) if others and all(names) else ()


def _explained(reason: Reason | None, clues: Sequence[Clue]) -> Reason | None:
    """Return the reason, by an error of the set-up where one explains it better."""
    if reason is None or not reason.vague:
        return reason
    for clue in clues:
        if clue.finding.kind in SETUP and clue.finding.kind != "nccl_warn":
            found = clue.finding
            return Reason(
                kind=found.kind,
                what=f"{reason.what}: {found.what}",
                advice=found.advice,
                told=Told(clue.text, clue.file, clue.number),
                host=found.node or reason.host,
                rank=found.rank if found.rank is not None else reason.rank,
            )
    return reason


def _notes(
    told: Sequence[Process], promise: Promise | None, gdr: bool | None, *, alone: bool
) -> list[str]:
    notes = []
    if not told:
        notes.append(
            "no line says which network NCCL uses: ranks on gloo write none; else run with"
            " NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET"
        )
    elif alone:
        notes.append("all of it is on one node, so nothing goes between nodes")
    elif gdr is None and (promise is None or promise.rdma):
        notes.append(
            "GPUDirect is not proven: no connection between nodes is in the log (NCCL_DEBUG=INFO,"
            " NCCL_DEBUG_SUBSYS=INIT,NET)"
        )
    if promise is None and told and any(p.network == SOCKET for p in told) and not alone:
        notes.append("if the cluster has no faster network, sockets are right: give --site")
    return notes
