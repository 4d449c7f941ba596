"""Which host an error's other end is. Pure.

NCCL names it as "10.0.0.1<33759>" or "node-2<33759>": an address is looked up among those that the
processes said their hosts have.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from orchestrator.fabric.clues import Clue
from orchestrator.fabric.network import Process
from orchestrator.nodelist import node_of


def named(clues: Iterable[Clue], processes: Sequence[Process]) -> list[Clue]:
    """Return the clues with the host at the other end, where that can be told."""
    hosts = tuple(dict.fromkeys(p.host for p in processes if p.host))
    owners: dict[str, set[str]] = {}
    for process in processes:
        for address in process.addresses if process.host else ():
            owners.setdefault(address, set()).add(process.host)
    return [_named(clue, hosts, owners) if clue.finding.peer else clue for clue in clues]


def _named(clue: Clue, hosts: tuple[str, ...], owners: dict[str, set[str]]) -> Clue:
    finding = clue.finding
    name = finding.peer.partition("<")[0]
    # An address that several hosts have, such as that of a bridge, is nobody's name.
    known = owners.get(name, set())
    host = next(iter(known)) if len(known) == 1 else ""
    host = host or (node_of(name, hosts) if len(hosts) > 1 else "")
    if not host:
        return clue
    what = finding.what
    if host != name:
        what = what.replace(finding.peer, f"{host} ({finding.peer})", 1)
    return replace(clue, finding=replace(finding, what=what), peer_host=host)
