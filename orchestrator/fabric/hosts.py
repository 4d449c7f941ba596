"""The processes of each host together. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.fabric.network import Process
from orchestrator.fabric.promise import SOCKET, Promise


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the processes of one host say together.

    Attributes:
        name: "" where the log does not say.
        network: The worst that one of them uses.
        hcas: HCAs that one or the other of them found; None where none said.
        gdr: As in `verdict.Diagnosis`.
    """

    name: str
    network: str = ""
    hcas: int | None = None
    gdr: bool | None = None
    ranks: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        data = asdict(self)
        return {
            "host": data.pop("name") or None,
            **data,
            "ranks": list(self.ranks),
            "names": list(self.names),
        }


def gather(processes: Iterable[Process]) -> list[Host]:
    """Return the hosts of which anything is known of the network, by name."""
    found: dict[str, list[Process]] = {}
    for process in processes:
        found.setdefault(process.host, []).append(process)
    hosts = [_host(name, members) for name, members in sorted(found.items())]
    return [host for host in hosts if host.network or host.hcas is not None]


def _host(name: str, members: Sequence[Process]) -> Host:
    networks = [p.network for p in members if p.network]
    proofs = [p.has_gdr for p in members if p.has_gdr is not None]
    listed = {hca for p in members for hca in (p.hcas or {})}
    told = any(p.hcas is not None for p in members)
    nics = max((p.nics for p in members if p.nics is not None), default=None)
    return Host(
        name=name,
        network=SOCKET if SOCKET in networks else next(iter(networks), ""),
        hcas=len(listed) if told and (listed or nics is None) else nics,
        gdr=all(proofs) if proofs else None,
        ranks=tuple(sorted(p.rank for p in members if p.rank is not None)),
        names=tuple(sorted(listed)),
    )


def expected_hcas(hosts: Sequence[Host], promise: Promise | None) -> int | None:
    """Return how many HCAs each host should have: as promised, else what most of them have.

    A port that is down is only visible as a shorter list, so one host is compared with the others.
    """
    if promise is not None and promise.hcas is not None:
        return promise.hcas
    counts = Counter(host.hcas for host in hosts if host.hcas)
    if not counts:
        return None
    most = max(counts.values())
    return max(count for count, times in counts.items() if times == most)
