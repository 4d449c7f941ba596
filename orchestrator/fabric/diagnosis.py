"""What is said of a network, as a value and as data. Pure."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.fabric.clues import Clue
from orchestrator.fabric.hosts import Host
from orchestrator.fabric.promise import Promise
from orchestrator.fabric.reasons import Reason

Word = Literal["ok", "degraded", "no_gdr", "socket_fallback", "failed", "unknown"]
# Verdicts on a network that works and is not what it should be.
FLAGGED: tuple[Word, ...] = ("socket_fallback", "no_gdr", "degraded")
# How many errors besides the first are given as data.
_OTHERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What logs say of the network, and of the first error.

    Attributes:
        verdict: "failed" where there is an error that ended something, else ``fabric``.
        fabric: The verdict on the network alone.
        network: As NCCL's log names it, the worst of all processes; "" where it says nothing.
        hcas: HCAs on the host with the fewest; None where nothing is said of them.
        gdr: Whether GPUDirect is used on every connection between nodes; None if unproven.
        channels: Connections to other nodes with GPUDirect, and all.
        layers: Link layers of the HCAs, "IB" and "RoCE".
        reason: Why the network is not what it should be; None where it is.
        clues: The errors, the root cause first.
        suspects: Hosts that the reason speaks against: never all of several.
        notes: What else is worth knowing, a sentence each.
    """

    verdict: Word
    fabric: Word
    network: str = ""
    hcas: int | None = None
    gdr: bool | None = None
    version: str = ""
    provider: str = ""
    channels: tuple[int, int] = (0, 0)
    layers: tuple[str, ...] = ()
    reason: Reason | None = None
    clues: tuple[Clue, ...] = ()
    hosts: tuple[Host, ...] = ()
    suspects: tuple[str, ...] = ()
    processes: int = 0
    promise: Promise | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def cause(self) -> dict[str, Any] | None:
        """The root cause as data: of the failure if there is one, else of what is wrong."""
        if self.verdict == "failed" and self.clues:
            return _clue(self.clues[0])
        return self.reason.to_json() if self.reason else None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types; the first seven keys are those that others rely on."""
        others = self.clues[1:] if self.verdict == "failed" else self.clues
        return {
            "verdict": self.verdict,
            "network": self.network or None,
            "hcas": self.hcas,
            "gdr": self.gdr,
            "nccl_version": self.version or None,
            "cause": self.cause,
            "fabric": self.fabric,
            "fabric_cause": self.reason.to_json() if self.reason else None,
            "expected": self.promise.to_json() if self.promise else None,
            "provider": self.provider or None,
            "link_layers": list(self.layers),
            "mixed_link_layers": len(self.layers) > 1,
            "channels": {"between_nodes": self.channels[1], "gdr": self.channels[0]},
            "suspects": list(self.suspects),
            "hosts": [host.to_json() for host in self.hosts],
            "processes": self.processes,
            "others": [_clue(clue) for clue in others[:_OTHERS]],
            "notes": list(self.notes),
        }


_HCA = re.compile(r"\b(?:hca|on dev) ([\w-]+)")


def _clue(clue: Clue) -> dict[str, Any]:
    found = clue.finding
    hca = _HCA.search(clue.text)
    return {
        "kind": found.kind,
        "rank": found.rank,
        "host": found.node or None,
        "line": clue.text,
        "advice": found.advice,
        "what": found.what,
        "hca": hca[1] if hca else None,
        "file": clue.file or None,
        "line_number": clue.number or None,
        "peer": found.peer or None,
        "peer_host": clue.peer_host or None,
    }


@dataclass(frozen=True, slots=True)
class Broken:
    """That a network is less than a job requires.

    Attributes:
        suspects: Hosts that it is the fault of; empty where it is no single host's.
    """

    why: str
    advice: str
    suspects: tuple[str, ...] = ()


def broken(found: Diagnosis) -> Broken | None:
    """Return how the network is less than `require_rdma` asks for; None where it is not.

    Fewer HCAs than expected on every host are the profile's mistake rather than a fault.
    """
    if found.reason is None or found.fabric not in FLAGGED:
        return None
    if found.fabric == "degraded" and not found.suspects:
        return None
    return Broken(found.reason.what, found.reason.advice, found.suspects)
