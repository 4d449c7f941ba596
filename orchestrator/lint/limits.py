"""Rules on partitions, QOS, quotas, time and preemption. Pure."""

from collections.abc import Iterator

from orchestrator.keys.fields import slurm_time
from orchestrator.launchplan.target import beyond_limits
from orchestrator.lint.case import Case, Job
from orchestrator.lint.rule import Hit, rule
from orchestrator.profile import Terms

_PROFILE = "the site profile"


@rule(
    "error",
    why="the job could never start there",
    do="ask for what the site has",
    source=_PROFILE,
)
def beyond_the_limits(case: Case) -> Iterator[Hit]:
    """A job with more nodes, time or GPUs than partition, QOS or quota allow."""
    job = case.job
    if job is None:
        return
    if job.where is None:
        yield _hit(job, job.refusal or "")
        return
    for problem in beyond_limits(job.spec, case.profile, job.where, workers=job.workers):
        yield _hit(job, problem)
    gpu = job.where.gpu
    if gpu is not None and job.workers > gpu.per_node:
        yield _hit(job, f"gpus_per_node: {job.workers} are more than a node has ({gpu.per_node})")


def _hit(job: Job, problem: str) -> Hit:
    key, _, why = problem.partition(": ")
    value = getattr(job.spec, key, None)
    if key == "time_limit" and isinstance(value, int):
        value = slurm_time(value)
    why, _, do = why.partition("; ")
    return Hit(at=job.place(key, "" if value is None else value), why=why, do=do or None)


@rule(
    "warn",
    why="without a time limit the job gets the partition's default",
    do="add `time_limit: ...`",
    source=_PROFILE + ": default_time_limit",
)
def no_time_limit(case: Case) -> Iterator[Hit]:
    """A job without a limit where Slurm's default would be used."""
    job = case.job
    if job is None or job.where is None or job.spec.time_limit:
        return
    terms = job.where.terms
    if terms.default_time_limit and not terms.time_limit:
        why = f"{no_time_limit.why}, {slurm_time(terms.default_time_limit)}"
        yield Hit(at=job.place("time_limit"), why=why)


@rule(
    "info",
    why="the grace time is shorter than the notice that the job counts on",
    do="let saves fit into the grace time, and save often: what comes between is the protection",
    source="slurm.conf(5): GraceTime, KillWait",
)
def short_grace(case: Case) -> Iterator[Hit]:
    """Less grace than lead: a warning where the job names its lead."""
    job = case.job
    if job is None:
        yield from _no_grace(case)
    elif job.where is not None and _preempts(job.where.terms):
        grace, lead = job.where.terms.grace_s, job.spec.notice.lead_s
        if grace is not None and grace < lead:
            named = "lead_s" in job.spec.notice.model_fields_set
            why = f"a preempted job has {grace} s there, and notice.lead_s is {lead}"
            at = job.place("notice.lead_s", lead)
            yield Hit(at=at, why=why, level="warn" if named else None)


def _no_grace(case: Case) -> Iterator[Hit]:
    for key, terms in _terms(case):
        if _preempts(terms) and terms.grace_s == 0:
            why = "a preempted job ends without notice there: only what was saved before is left"
            yield Hit(at=case.place(f"{key}.grace_s", 0), why=why)


def _preempts(terms: Terms) -> bool:
    return terms.preempt in ("requeue", "cancel")


def _terms(case: Case) -> Iterator[tuple[str, Terms]]:
    """Yield all terms of the profile, each with its key."""
    profile = case.profile
    for name, partition in profile.partitions.items():
        yield f"partitions.{name}", partition
    for name, qos in profile.qos.items():
        yield f"qos.{name}", qos
    if profile.preemptible is not None:
        yield "preemptible", profile.preemptible


@rule(
    "error",
    why="the times contradict each other",
    do="correct them",
    source=_PROFILE,
)
def times_contradict(case: Case) -> Iterator[Hit]:
    """A least or default time above the most."""
    for key, terms in _terms(case):
        for name in ("min_time_limit", "default_time_limit"):
            value = getattr(terms, name)
            if value and terms.time_limit and value > terms.time_limit:
                at = case.place(f"{key}.{name}", slurm_time(value))
                yield Hit(at=at, why=f"it is more than time_limit, {slurm_time(terms.time_limit)}")


@rule(
    "warn",
    why="there is a grace time and no preemption",
    do="say what happens to preempted jobs: `preempt: requeue` or `cancel`",
    source=_PROFILE,
)
def grace_without_preemption(case: Case) -> Iterator[Hit]:
    """Terms of preemption where the profile says that there is none."""
    for key, terms in _terms(case):
        if terms.preempt == "off" and terms.grace_s:
            yield Hit(at=case.place(f"{key}.grace_s", terms.grace_s))


@rule(
    "warn",
    why="the profile says nothing of this one, so that nothing holds for it",
    do="correct the name, or add it",
    source=_PROFILE,
)
def name_of_nothing(case: Case) -> Iterator[Hit]:
    """A partition or QOS that is named and not described, where others are."""
    profile = case.profile
    named = [("default_partition", profile.default_partition)]
    if profile.preemptible:
        named.append(("preemptible.partition", profile.preemptible.partition))
    for number, quota in enumerate(profile.quotas):
        # Several profiles of a cluster share a quota, and each describes its own partitions.
        if not any(name in profile.partitions for name in quota.partitions):
            named += [(f"quotas.{number}.partitions", name) for name in quota.partitions]
    for key, name in named:
        if name and profile.partitions and name not in profile.partitions:
            yield Hit(at=case.place(key, name), level=None if key[0] == "d" else "info")
    of_qos = [("default_qos", profile.default_qos)]
    of_qos += [(f"partitions.{key}.qos", one.qos) for key, one in profile.partitions.items()]
    for key, name in of_qos:
        if name and profile.qos and name not in profile.qos:
            yield Hit(at=case.place(key, name), level="info")


@rule(
    "error",
    why="the partition does not take this QOS, so that Slurm refuses each job there",
    do="correct one of the two",
    source="slurm.conf(5): AllowQos, DenyQos",
)
def qos_not_taken(case: Case) -> Iterator[Hit]:
    """A QOS that jobs get by the profile in a partition that refuses it."""
    profile = case.profile
    for name, one in profile.partitions.items():
        if one.qos and not one.takes(one.qos):
            yield Hit(at=case.place(f"partitions.{name}.qos", one.qos))
        elif one.qos is None and profile.default_qos and not one.takes(profile.default_qos):
            why = f"the partition {name} does not take it, and names no `qos` of its own"
            yield Hit(at=case.place("default_qos", profile.default_qos), why=why)
    cheap = profile.preemptible
    if cheap is None or cheap.qos is None:
        return
    name = cheap.partition or profile.default_partition or ""
    if name in profile.partitions and not profile.partitions[name].takes(cheap.qos):
        yield Hit(at=case.place("preemptible.qos", cheap.qos))


@rule(
    "warn",
    why="more nodes are allowed than there are",
    do="correct one of the two",
    source=_PROFILE,
)
def more_than_there_are(case: Case) -> Iterator[Hit]:
    """A limit of nodes above the partition's size."""
    for name, one in case.profile.partitions.items():
        if one.nodes and one.max_nodes and one.max_nodes > one.nodes:
            yield Hit(at=case.place(f"partitions.{name}.max_nodes", one.max_nodes))
