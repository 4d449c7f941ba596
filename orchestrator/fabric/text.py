"""A diagnosis for people: a few lines to act on. Pure."""

from typing import Any

from orchestrator.fabric.diagnosis import Diagnosis
from orchestrator.fabric.hosts import Host

_HEADS = {
    "ok": "the network is as it should be",
    "unknown": "nothing is known of the network",
}
_LAYERS = {"IB": "InfiniBand", "RoCE": "RoCE"}
_HOSTS = 16
_OTHERS = 4


def describe(found: Diagnosis) -> str:
    """Return the diagnosis as text."""
    failed = found.verdict == "failed"
    lines = [f"{found.verdict}: {_head(found)}"]
    if failed and found.cause:
        lines += _cause(found.cause)
    if failed and found.reason is not None:
        lines.append(f"besides, {found.fabric}: {found.reason.what}")
    if found.reason is not None:
        lines += _cause(found.reason.to_json())
    if facts := _facts(found):
        lines.append(f"network: {facts}")
    if found.promise is not None:
        lines.append(f"expected: {_expected(found)}")
    lines += [*_hosts(found), *_others(found)]
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


def _head(found: Diagnosis) -> str:
    if found.verdict == "failed" and found.cause:
        who = _who(found.cause["rank"], found.cause["host"])
        return f"{who}{': ' if who else ''}{found.cause['what']}"
    return found.reason.what if found.reason else _HEADS.get(found.verdict, "")


def _who(rank: int | None, host: str | None) -> str:
    """Return a rank and its host, as far as they are known."""
    words = [f"rank {rank}"] if rank is not None else []
    return " on ".join([*words, *([host] if host else [])])


def _facts(found: Diagnosis) -> str:
    facts = [found.network] if found.network else []
    if found.provider:
        facts.append(f"provider {found.provider}")
    if found.hcas is not None:
        layers = " and ".join(_LAYERS.get(layer, layer) for layer in found.layers)
        facts.append(_hcas(found.hcas) + (f" ({layers})" if layers else ""))
    if found.channels[1]:
        facts.append(f"GPUDirect on {found.channels[0]} of {found.channels[1]} connections")
    elif found.gdr is not None:
        facts.append("GPUDirect" if found.gdr else "no GPUDirect")
    if found.version:
        facts.append(f"NCCL {found.version}")
    return ", ".join(facts)


def _hcas(count: int) -> str:
    return f"{count} HCA{'' if count == 1 else 's'} a host"


def _expected(found: Diagnosis) -> str:
    promise = found.promise
    assert promise is not None
    facts = [promise.kind]
    if promise.networks:
        facts.append(" or ".join(promise.networks))
    if promise.hcas is not None:
        facts.append(_hcas(promise.hcas))
    if promise.gdr is not None:
        facts.append("GPUDirect" if promise.gdr else "no GPUDirect")
    return ", ".join(facts) + (f" (site {promise.site})" if promise.site else "")


def _cause(cause: dict[str, Any]) -> list[str]:
    who = _who(cause["rank"], cause["host"])
    lines = [f"cause: {cause['kind']}{', ' if who else ''}{who}"]
    if cause["line"]:
        at = _place(cause["file"], cause["line_number"])
        lines.append(f"  {at + ': ' if at else ''}{cause['line']}")
    return lines + ([f"do: {cause['advice']}"] if cause["advice"] else [])


def _place(file: str | None, number: int | None) -> str:
    """Return FILE:LINE, as far as it is known."""
    return f"{file or ''}:{number}" if file and number else file or ""


def _hosts(found: Diagnosis) -> list[str]:
    """Return a line a host, where they are not all the same."""
    kinds = {(host.network, host.hcas, host.gdr) for host in found.hosts}
    if len(kinds) < 2:
        return []
    odd = [host for host in found.hosts if host.name in found.suspects]
    rest = [host for host in found.hosts if host.name not in found.suspects]
    shown = [*odd, *rest][:_HOSTS]
    left = len(found.hosts) - len(shown)
    return [*map(_host, shown), *([f"  and {left} more hosts"] if left else [])]


def _host(host: Host) -> str:
    facts = [host.network or "network unknown"]
    if host.hcas is not None:
        facts.append(f"{host.hcas} HCAs")
    if host.gdr is not None:
        facts.append("GPUDirect" if host.gdr else "no GPUDirect")
    return f"  {host.name or '(no name)'}: {', '.join(facts)}"


def _others(found: Diagnosis) -> list[str]:
    others = found.clues[1:] if found.verdict == "failed" else ()
    told: dict[tuple[str, str], str] = {}
    for clue in others:
        seen = clue.finding
        who = _who(seen.rank, seen.node)
        at = _place(clue.file, clue.number)
        line = f"then: {who}{': ' if who else ''}{seen.what}{f' ({at})' if at else ''}"
        told.setdefault((seen.kind, seen.node), line)
    return list(told.values())[:_OTHERS]
