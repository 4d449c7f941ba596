"""From a job's `container:` and its site's to what the scripts are rendered from. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.errors import SpecError
from orchestrator.keys.mounts import inside, mount, same_place, uncovered
from orchestrator.profile import ContainerProfile, SiteProfile
from orchestrator.profile.container import Runtime
from orchestrator.spec.job import JobSpec
from orchestrator.spec.train import TrainSpec

PYTHON = "python3"
# What steers NCCL, its plug-ins and torch, and what fsdpq tells its own programs.
_CARRIED = (
    *("FSDPQ_*", "NCCL_*", "GLOO_*", "FI_*", "UCX_*"),
    *("TORCH_*", "TORCHELASTIC_*", "PYTORCH_*", "PYTHONUNBUFFERED"),
)
_ANNOTATION = re.compile(r"[\w.-]+=[^\"\\]*")
_MODULE = "--module="

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a job runs in.

    Attributes:
        image: As the runtime spells it.
        mounts: HOST:CONTAINER or HOST:CONTAINER:ro, as site and job ask for.
        needs: Paths of the host that the job reads; shown where they are.
        names: Variables, or beginnings with a *, whose exported value counts inside whatever the
            image sets.
        env: Set inside only, after those.
        options: More words for the runtime.
        workdir: The working directory inside; the plan's own, if None.
    """

    runtime: Runtime
    image: str
    mounts: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    env: Pairs = ()
    options: tuple[str, ...] = ()
    workdir: str | None = None

    @property
    def srun_options(self) -> bool:
        """Whether srun itself starts it, by a plug-in, and not a command before ours."""
        return self.runtime in ("pyxis", "edf")

    @property
    def flags(self) -> tuple[str, ...]:
        """Options as words of the command."""
        if self.runtime == "edf":
            return tuple(word for word in self.options if word.startswith("--"))
        return tuple(word for word in self.options if not self._for_sbatch(word))

    @property
    def annotations(self) -> Pairs:
        """What an EDF says of hooks, by name."""
        given = [word for word in self.options if self.runtime == "edf" and word[:2] != "--"]
        return tuple((name, value) for name, _, value in (word.partition("=") for word in given))

    @property
    def directives(self) -> Pairs:
        """Options for sbatch: shifter mounts its image when the nodes are set up for the job."""
        if self.runtime != "shifter":
            return ()
        modules = [word.removeprefix(_MODULE) for word in self.options if self._for_sbatch(word)]
        return (("image", self.image), *([("module", ",".join(modules))] if modules else []))

    @property
    def is_edf(self) -> bool:
        """Whether the image is the site's kind of description of one, rather than an image."""
        return self.image.endswith(".toml") or not re.search("[/:#]", self.image)

    def _for_sbatch(self, word: str) -> bool:
        return self.runtime == "shifter" and word.startswith(_MODULE)

    def all_mounts(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Return all mounts: those asked for, then those of ``paths`` and of what the job reads.

        shifter shows the site's file systems where they are, and mounts nothing at a place that
        its image does not have; so only what is asked for is mounted there.

        Raises:
            SpecError: No runtime can be told of such a path.
        """
        if self.runtime == "shifter":
            return self.mounts
        return (*self.mounts, *map(_shown, uncovered((*paths, *self.needs), self.mounts)))


def _shown(path: str) -> str:
    try:
        return same_place(path)
    except ValueError as problem:
        raise SpecError(
            f"container: {path!r} must be mounted, and {problem}; choose another place, or name a"
            " folder above it in `mounts:`"
        ) from None


def container(spec: JobSpec, profile: SiteProfile) -> Container | None:
    """Return what the job runs in; None for one that runs on the host.

    Raises:
        SpecError: Its site has no containers, or does not take these options.
    """
    if spec.container is None:
        return None
    asked, given = spec.container, _of_site(profile)
    options = (*given.options, *asked.options)
    _check_options(given.runtime, options)
    return Container(
        runtime=given.runtime,
        image=asked.image,
        mounts=_merged((*given.mounts, *asked.mounts)),
        needs=tuple(_read_by(spec.train)) if spec.train else (),
        names=_names(spec, profile, given),
        env=tuple((name, value) for name, value in given.env.items() if name not in spec.env),
        options=options,
        workdir=asked.workdir,
    )


def _of_site(profile: SiteProfile) -> ContainerProfile:
    if profile.scheduler == "local":
        raise SpecError(
            "container: the site local starts none; remove it, or choose another site (start"
            " `fsdpq` itself in the container to try a job there)"
        )
    if profile.container is None:
        raise SpecError(
            f"container: the profile of {profile.name} does not say how containers run there; in a"
            f" profile of your own (`extends: {profile.name}`) add `container: {{runtime: pyxis}}`,"
            " or apptainer, singularity, shifter, podman-hpc, edf"
        )
    return profile.container


def _merged(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the mounts; a later one at the same place replaces an earlier one."""
    return tuple({inside(one): one for one in map(mount, texts)}.values())


def _read_by(train: TrainSpec) -> Iterator[str]:
    """Yield the folders that the trainer reads; of a pattern, what comes before its first *."""
    if train.model.path is not None:
        yield train.model.path
    for pattern in train.read_paths:
        folder = re.split(r"[*?\[]", pattern)[0].rpartition("/")[0]
        if folder:
            yield folder


def _names(spec: JobSpec, profile: SiteProfile, given: ContainerProfile) -> tuple[str, ...]:
    exported = {**profile.env, **profile.env_container, **profile.env_multi_node, **spec.env}
    return tuple(dict.fromkeys((*_CARRIED, *given.pass_env, *exported)))


def _check_options(runtime: str, options: Iterable[str]) -> None:
    for word in options:
        if runtime == "edf" and not (word.startswith("--") or _ANNOTATION.fullmatch(word)):
            raise SpecError(
                f"container.options: {word!r}: with edf write --OPTION for srun, or NAME=VALUE for"
                " an annotation"
            )


def notice_signal(spec: JobSpec, container: Container | None) -> JobSpec:
    """Return the job with a notice that its runtime survives.

    podman has a process of its own beside each container, conmon, which USR2 kills and USR1 does
    not. Source: conmon.c, where SIGUSR1 has a handler.

    Raises:
        SpecError: The job insists on the other one.
    """
    if container is None or container.runtime != "podman-hpc" or spec.notice.signal == "USR1":
        return spec
    if "signal" in spec.notice.model_fields_set:
        raise SpecError(
            "notice.signal: USR2 kills podman's conmon, and with it the container; use USR1"
        )
    return spec.model_copy(update={"notice": spec.notice.model_copy(update={"signal": "USR1"})})


__all__ = ["PYTHON", "Container", "container", "notice_signal"]
