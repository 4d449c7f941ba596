"""What the rules look at: a profile, or a job on a profile, with every value in its place. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from orchestrator.errors import SpecError
from orchestrator.launchplan.target import Target, target
from orchestrator.lint.nccl_variables import Version
from orchestrator.profile import SiteProfile
from orchestrator.spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A value, and where it stands.

    Attributes:
        vouched: The source of the site's own that gives this value; None where there is none.
    """

    file: str
    key: str
    value: str
    vouched: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Place):
    """A variable of the environment.

    Attributes:
        inside: Whether it is set in a container; None: in and out of one.
    """

    name: str
    inside: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job on the site of the case.

    Attributes:
        where: Where it goes; None where the site has no such place: `refusal` says why.
        workers: GPUs on a node.
        run_dir: Where it will keep its checkpoints, absolute; None where that is not known.
    """

    spec: JobSpec
    file: str
    where: Target | None
    refusal: str | None
    run_dir: str | None = None

    @property
    def workers(self) -> int:
        """Workers, and so GPUs, on a node."""
        gpu = self.where.gpu if self.where else None
        return self.spec.gpus_per_node or (gpu.per_node if gpu else 1)

    @property
    def contained(self) -> bool:
        """Whether its workers run in a container."""
        return getattr(self.spec, "container", None) is not None

    def place(self, key: str, value: object = "") -> Place:
        """Return a value of the job file."""
        return Place(file=self.file, key=key, value=str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known beside the files.

    Attributes:
        version: Of the NCCL that will run; None: any of today.
        environ: For placeholders in paths, such as $USER.
        interfaces: Names of network interfaces; None: unknown.
        of_node: Whether those are a compute node's, and not this login node's.
    """

    version: Version | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] | None = None
    of_node: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one run of the rules is about.

    Attributes:
        settings: Of a profile all that it may set; of a job only what it will get.
        job: None: the profile alone.
    """

    profile: SiteProfile
    file: str
    settings: tuple[Setting, ...]
    job: Job | None = None
    around: Surroundings = Surroundings()

    @property
    def fabric(self) -> str:
        """The kind of network between nodes."""
        return self.profile.fabric.kind

    @property
    def several_nodes(self) -> bool:
        """Whether the network between nodes matters."""
        return self.fabric != "none" and (self.job is None or self.job.spec.nodes > 1)

    @property
    def contained(self) -> bool:
        """Whether workers may run in a container."""
        return self.job.contained if self.job else self.profile.container is not None

    def named(self, *names: str) -> Iterator[Setting]:
        """Yield what is set under one of ``names``; NAME* is a beginning."""
        for one in self.settings:
            if any(_is(one.name, name) for name in names):
                yield one

    def place(self, key: str, value: object = "") -> Place:
        """Return a value of the profile."""
        return Place(file=self.file, key=key, value=str(value))


def of_profile(profile: SiteProfile, *, file: str, around: Surroundings) -> Case:
    """Return the case of a profile, which stands in ``file``."""
    found = tuple(_of_site(profile, file))
    return Case(profile=profile, file=file, settings=found, around=around)


def of_job(
    spec: JobSpec,
    profile: SiteProfile,
    *,
    file: str,
    site_file: str,
    run_dir: str | None,
    around: Surroundings,
) -> Case:
    """Return the case of a job in ``file`` on a site whose profile stands in ``site_file``."""
    where, refusal = _target(spec, profile)
    job = Job(spec=spec, file=file, where=where, refusal=refusal, run_dir=run_dir)
    got = {one.name: one for one in _of_site(profile, site_file) if _reaches(one, job)}
    own = (
        Setting(file=file, key=f"env.{name}", value=value, name=name)
        for name, value in spec.env.items()
    )
    got |= {one.name: one for one in own}
    return Case(
        profile=profile, file=site_file, settings=tuple(got.values()), job=job, around=around
    )


def _target(spec: JobSpec, profile: SiteProfile) -> tuple[Target | None, str | None]:
    try:
        return target(spec, profile), None
    except SpecError as problem:
        return None, str(problem)


def _reaches(one: Setting, job: Job) -> bool:
    if one.key.startswith("env_multi_node.") and job.spec.nodes == 1:
        return False
    return one.inside in (None, job.contained)


def _of_site(profile: SiteProfile, file: str) -> Iterator[Setting]:
    """Yield what the profile sets, in the order in which a later one wins."""
    blocks: list[tuple[str, Mapping[str, str], bool | None]] = [
        (f"scripts.{number}.env", one.env, None) for number, one in enumerate(profile.scripts)
    ]
    blocks += [
        ("env", profile.env, None),
        ("env_host", profile.env_host, False),
        ("env_container", profile.env_container, True),
        ("env_multi_node", profile.env_multi_node, None),
    ]
    if profile.container is not None:
        blocks.append(("container.env", profile.container.env, True))
    for block, values, inside in blocks:
        for name, value in values.items():
            key = f"{block}.{name}"
            vouched = _vouched(profile, key, file)
            yield Setting(
                file=file, key=key, value=value, name=name, inside=inside, vouched=vouched
            )


def _vouched(profile: SiteProfile, key: str, file: str) -> str | None:
    """Return which source of the site's own gives the value of ``key``.

    The evidence must name the key or its block, with medium confidence at least: what holds for
    the profile as a whole vouches for no single setting, and no file vouches for itself.
    """
    if not any(key == told or key.startswith(f"{told}.") for told in profile.evidence):
        return None
    found = profile.evidence_of(key)
    trusted = found.confidence in ("high", "medium") and found.source != file
    return found.source if trusted else None


def _is(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted
