"""Site profiles as a table, as a page, and fact by fact. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.keys.fields import slurm_time
from orchestrator.profile import PreemptibleProfile, SiteProfile, Terms
from orchestrator.report.columns import columns, fitted

_HEAD = ("NAME", "GPU", "FABRIC", "PREEMPTION", "CHECKED", "SOURCE")
_TIMES = ("time_limit", "min_time_limit", "default_time_limit", "below_time_limit")


def sites_json(profiles: Sequence[SiteProfile]) -> list[dict[str, Any]]:
    """Return what there is to choose from, a profile each."""
    return [_summary(profile) for profile in profiles]


def _summary(profile: SiteProfile) -> dict[str, Any]:
    gpu, terms = profile.gpu, cheap(profile)
    return {
        "name": profile.name,
        "description": profile.description,
        "gpu": gpu.model if gpu else None,
        "gpus_per_node": gpu.per_node if gpu else None,
        "fabric": profile.fabric.kind,
        "rate": profile.fabric.rate,
        "preemption": terms.preempt if terms else None,
        "preemptible": _way(profile),
        "grace_s": terms.grace_s if terms else None,
        "source": list(profile.source),
        "checked": profile.checked,
        "confidence": profile.confidence,
    }


def cheap(profile: SiteProfile) -> Terms | None:
    """Return the terms of what can be taken away there; None where nothing is known of it."""
    way = profile.preemptible
    if way is not None:
        named = (profile.partitions.get(way.partition or ""), profile.qos.get(way.qos or ""), way)
        return _first([terms for terms in reversed(named) if terms is not None])
    return _first([*profile.partitions.values(), *([profile.terms] if profile.terms else [])])


def _first(parts: Sequence[Terms]) -> Terms | None:
    """Return the first of ``parts`` that is preempted, else one that says that it is not."""
    told = [part for part in parts if "preempt" in part.model_fields_set]
    return next((part for part in told if part.preempt != "off"), told[0] if told else None)


def _way(profile: SiteProfile) -> dict[str, str] | None:
    way = profile.preemptible
    if way is None:
        return None
    return {key: text for key in ("partition", "qos", "comment") if (text := getattr(way, key))}


def sites_table(profiles: Sequence[SiteProfile], *, width: int | None) -> str:
    """Return a line a profile, no longer than ``width`` where there is one."""
    return fitted([_HEAD, *(_row(profile) for profile in profiles)], width=width)


def sites_page(profiles: Sequence[SiteProfile]) -> str:
    """Return the same as a table of Markdown."""
    rows = [[f"`{name}`", *rest] for name, *rest in map(_row, profiles)]
    lines = [[text.lower() for text in _HEAD], ["---"] * len(_HEAD), *rows]
    return "\n".join(_line(row) for row in lines)


def _line(cells: Sequence[str]) -> str:
    safe = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(safe)} |"


def _row(profile: SiteProfile) -> tuple[str, ...]:
    gpu, fabric = profile.gpu, profile.fabric
    return (
        profile.name,
        f"{gpu.per_node} x {gpu.model}" if gpu else "-",
        " ".join([fabric.kind, *([fabric.rate] if fabric.rate else [])]),
        _preemption(profile),
        profile.checked,
        profile.source[0].partition(",")[0] if profile.source else "-",
    )


def _preemption(profile: SiteProfile) -> str:
    terms, way = cheap(profile), profile.preemptible
    mode = terms.preempt if terms else "-"
    grace = f" {terms.grace_s} s" if terms and terms.grace_s is not None else ""
    return f"{_named(way)}: {mode}{grace}" if way else f"{mode}{grace}"


def _named(way: PreemptibleProfile) -> str:
    return way.partition or way.qos or "comment"


def site_json(profile: SiteProfile) -> dict[str, Any]:
    """Return a profile fact by fact."""
    return {
        **_summary(profile),
        "extends": profile.extends,
        "facts": [
            {"fact": fact, "value": _plain(fact, value), **_evidence(profile, fact)}
            for fact, value in _single(profile)
        ],
        "notes": list(profile.notes),
    }


def _single(profile: SiteProfile) -> Iterator[tuple[str, Any]]:
    """Yield the facts, each quota or script of a list by itself."""
    for fact, value in profile.told():
        if isinstance(value, tuple | list) and any(isinstance(item, dict) for item in value):
            yield from ((f"{fact}.{number}", item) for number, item in enumerate(value))
        else:
            yield fact, value


def _evidence(profile: SiteProfile, fact: str) -> dict[str, Any]:
    found = profile.evidence_of(fact)
    return {"source": found.source, "confidence": found.confidence}


def _plain(fact: str, value: Any) -> Any:
    """Return a value as its file has it: times as Slurm writes them."""
    if isinstance(value, int) and fact.rpartition(".")[2] in _TIMES:
        return slurm_time(value)
    if isinstance(value, dict):
        return {key: _plain(key, item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def site_details(profile: SiteProfile) -> str:
    """Return a profile as text: each fact, how far to trust it, and which source says so."""
    numbers = {source: number for number, source in enumerate(profile.source, start=1)}
    rows = [("FACT", "VALUE", "CONFIDENCE", "SOURCE")]
    for fact, value in _single(profile):
        found = profile.evidence_of(fact)
        number = numbers.setdefault(found.source, len(numbers) + 1)
        shown = _shown(_plain(fact, value))
        rows.append((fact, shown, found.confidence or "-", f"[{number}]"))
    lines = [f"{profile.name}: {profile.description}", f"checked {profile.checked}", ""]
    lines += [columns(rows), "", *(f"[{n}] {source}" for source, n in numbers.items())]
    lines += ["", *(f"- {note}" for note in profile.notes)] if profile.notes else []
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_shown(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) or "-"
    return str(value) if value not in (None, "") else "-"
