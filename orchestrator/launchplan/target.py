"""Where a job goes on its site: partition, QOS and their terms together. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import SpecError
from orchestrator.keys.fields import slurm_time
from orchestrator.profile import (
    GpuProfile,
    PartitionProfile,
    PreemptibleProfile,
    QosProfile,
    Quota,
    SiteProfile,
    Terms,
)
from orchestrator.spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a job asks for, and what is known of it.

    Attributes:
        terms: Of the partition, with what the QOS says in its place.
        partition_profile: What the site says of the partition.
        gpu: What its nodes have; None on a site without GPUs.
    """

    partition: str | None
    qos: str | None
    comment: str | None
    constraint: str | None
    terms: Terms
    partition_profile: PartitionProfile
    gpu: GpuProfile | None
    cpus_per_node: int | None


def target(spec: JobSpec, profile: SiteProfile) -> Target:
    """Return where ``spec`` goes on the site ``profile``; nothing is known of what it lacks.

    Raises:
        SpecError: The site does not have what the job asks for.
    """
    if profile.scheduler == "local":
        _refuse_local(spec)
    cheap = _preemptible(spec, profile)
    name = spec.partition or (cheap and cheap.partition) or profile.default_partition
    known = profile.partitions.get(name, PartitionProfile()) if name else PartitionProfile()
    qos = spec.qos or (cheap and cheap.qos) or known.qos or profile.default_qos
    granted = profile.qos.get(qos, QosProfile()) if qos else QosProfile()
    return Target(
        partition=name,
        qos=qos,
        comment=spec.comment or (cheap and cheap.comment) or known.comment,
        constraint=spec.constraint or known.constraint or profile.constraint,
        terms=_together(*_parts(profile, known, granted, cheap)),
        partition_profile=known,
        gpu=known.gpu or profile.gpu,
        cpus_per_node=spec.cpus_per_node or known.cpus_per_node or profile.cpus_per_node,
    )


def check_limits(spec: JobSpec, profile: SiteProfile, where: Target, *, workers: int) -> None:
    """Refuse a job that its partition, QOS or quota could never start.

    Args:
        spec: The job.
        profile: Its site.
        where: Where it goes.
        workers: GPUs on a node.

    Raises:
        SpecError: It needs an account, or more nodes, time or GPUs than there can be.
    """
    for problem in beyond_limits(spec, profile, where, workers=workers):
        raise SpecError(problem)


def beyond_limits(
    spec: JobSpec, profile: SiteProfile, where: Target, *, workers: int
) -> Iterator[str]:
    """Yield why the job could never start, each as `KEY: what is wrong and what to do`."""
    if profile.account_required and spec.account is None:
        form = f" of the form {profile.account_form}" if profile.account_form else ""
        yield f"account: the site {profile.name} needs one{form}; add `account: ...`"
    terms, place = where.terms, _place(where)
    if terms.max_nodes is not None and spec.nodes > terms.max_nodes:
        yield f"nodes: {spec.nodes} are more than {place} allows ({terms.max_nodes})"
    yield from _refused_qos(where)
    yield from _beyond_time(spec, terms, place)
    if where.gpu is not None:
        yield from _beyond_quotas(spec, profile, where, spec.nodes * workers)


def _refused_qos(where: Target) -> Iterator[str]:
    known = where.partition_profile
    if where.qos is None or known.takes(where.qos):  # without one it is Slurm's default, unknown
        return
    instead = f"use one of {', '.join(known.allow_qos)}" if known.allow_qos else "use another"
    place = f"the partition {where.partition}" if where.partition else "the default partition"
    yield f"qos: {where.qos} is not taken by {place}; {instead}, or another partition"


def _place(where: Target) -> str:
    partition = f"the partition {where.partition}" if where.partition else "the default partition"
    return f"{partition} with the QOS {where.qos}" if where.qos else partition


def _beyond_time(spec: JobSpec, terms: Terms, place: str) -> Iterator[str]:
    asked = spec.time_limit
    if asked and terms.time_limit and asked > terms.time_limit:
        yield (
            f"time_limit: {slurm_time(asked)} is more than {place} allows"
            f" ({slurm_time(terms.time_limit)})"
        )
    if asked and terms.min_time_limit and asked < terms.min_time_limit:
        yield (
            f"time_limit: {slurm_time(asked)} is less than {place} takes"
            f" ({slurm_time(terms.min_time_limit)})"
        )


def _beyond_quotas(spec: JobSpec, profile: SiteProfile, where: Target, gpus: int) -> Iterator[str]:
    most = [(where.terms.max_gpus_per_user, f"{_place(where)} gives a user", where.terms.note)]
    for quota in _quotas(spec, profile, where):
        when = _when(quota)
        most.append((quota.gpus_per_user, f"{profile.name} gives a user{when}", quota.note))
        most.append((quota.gpus_per_account, f"{profile.name} gives an account{when}", quota.note))
        if quota.nodes_per_user is not None and spec.nodes > quota.nodes_per_user:
            yield (
                f"nodes: {spec.nodes} are more than {profile.name} gives a user{when}"
                f" ({quota.nodes_per_user}); {_fewer(quota.note)}"
            )
    for limit, who, note in most:
        if limit is not None and gpus > limit:
            yield (
                f"nodes: {spec.nodes} have {gpus} GPUs, which is more than {who} ({limit});"
                f" {_fewer(note)}"
            )


def _fewer(note: str | None) -> str:
    """Return what to do, and the profile's word on the limit."""
    text = "the job would wait for ever: ask for fewer"
    return f"{text} (the profile's note: {note})" if note else text


def _when(quota: Quota) -> str:
    """Return for which time limits a quota counts, where it does not count for all."""
    limit = quota.below_time_limit
    return f" for time limits below {slurm_time(limit)}" if limit else ""


def _quotas(spec: JobSpec, profile: SiteProfile, where: Target) -> list[Quota]:
    """Return the quotas that count where the job goes, and for as long as it may run."""
    limit = spec.time_limit or where.terms.time_limit or where.terms.default_time_limit
    return [
        one
        for one in profile.quotas
        if (not one.partitions or where.partition in one.partitions)
        and _counts_below(one.below_time_limit, limit)
    ]


def _counts_below(bound: int | None, limit: int | None) -> bool:
    """Return whether a job of ``limit`` seconds is below; where it is not known, it may be."""
    return bound is None or limit is None or limit < bound


def _refuse_local(spec: JobSpec) -> None:
    if spec.nodes != 1:
        raise SpecError(f"nodes: {spec.nodes} cannot be had on the site local; it is one machine")
    options = ("partition", "account", "qos", "reservation", "constraint", "comment", "time_limit")
    given = [name for name in options if getattr(spec, name) is not None]
    given += [name for name in ("sbatch", "switches", "preemptible") if getattr(spec, name)]
    if given:
        raise SpecError(
            f"{given[0]}: the site local has no Slurm; remove it or choose another site"
        )


def _preemptible(spec: JobSpec, profile: SiteProfile) -> PreemptibleProfile | None:
    if not spec.preemptible:
        return None
    cheap = profile.preemptible
    if cheap is None and profile.terms is not None and _off(profile.terms):
        raise SpecError(
            f"preemptible: preemption is off at {profile.name}: no job there can be taken away, nor"
            " had cheaper for that; leave it out"
        )
    if cheap is None:
        raise SpecError(
            f"preemptible: the profile of {profile.name} does not say how to ask for it; leave it"
            " out, and name the partition or QOS"
        )
    for key in ("partition", "qos", "comment"):
        theirs, ours = getattr(spec, key), getattr(cheap, key)
        if theirs is not None and ours is not None and theirs != ours:
            raise SpecError(
                f"preemptible: asks {profile.name} with the {key} {ours}, and `{key}: {theirs}`"
                " says otherwise; leave one of the two out"
            )
    return cheap


def _off(terms: Terms) -> bool:
    """Return whether the profile itself says that there is no preemption."""
    return "preempt" in terms.model_fields_set and terms.preempt == "off"


def _parts(profile: SiteProfile, *parts: Terms | None) -> list[Terms]:
    return [part for part in (profile.terms, *parts) if part is not None]


def _together(*parts: Terms) -> Terms:
    """Return what all parts grant together; a later one goes before an earlier one."""
    granted: dict[str, Any] = {}
    for part in parts:
        given = part.model_fields_set & Terms.model_fields.keys()
        values = {name: getattr(part, name) for name in given}
        if isinstance(part, QosProfile) and not part.beyond_partition:
            values |= _smaller(values, granted)
        granted |= values
    return Terms.model_construct(**granted)


def _smaller(values: dict[str, Any], granted: dict[str, Any]) -> dict[str, Any]:
    """Return the limits of a QOS as Slurm applies them: beside those of the partition."""
    both = [name for name in ("time_limit", "max_nodes") if values.get(name) and granted.get(name)]
    return {name: min(values[name], granted[name]) for name in both}
