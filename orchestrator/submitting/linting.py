"""Read the files that lint is asked about, and have the rules look at them. Effects: reading."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import InputError, ProfileError, SpecError
from orchestrator.home import own_sites
from orchestrator.keys.fields import read_yaml
from orchestrator.launchplan import plan as planning
from orchestrator.lint import Finding, Surroundings, lint, of_job, of_profile
from orchestrator.profile import SiteProfile, locate, own_names, read_profile, shipped
from orchestrator.rundir.layout import RunLayout
from orchestrator.spec.job import JobSpec, check_script, load_job

_ONLY_JOB = JobSpec.model_fields.keys() - SiteProfile.model_fields.keys()
_ONLY_SITE = SiteProfile.model_fields.keys() - JobSpec.model_fields.keys()


def surroundings() -> Surroundings:
    """Return what this machine knows: its environment, and its network interfaces."""
    try:
        interfaces = tuple(sorted(path.name for path in Path("/sys/class/net").iterdir()))
    except OSError:
        interfaces = None
    return Surroundings(environ=dict(os.environ), interfaces=interfaces)


def everything() -> list[str]:
    """Return the names of all profiles: the user's own, then the shipped ones."""
    own = own_names(own_sites())
    return [*own, *(name for name in shipped() if name not in own)]


def findings(
    name: str, *, job: Path | None, runs: Path, around: Surroundings
) -> tuple[str, tuple[Finding, ...]]:
    """Return what there is to say of a profile or a job file, and the file that it is.

    Args:
        name: The name of a profile, or the path of one or of a job file.
        job: A job that is to run on the profile.
        runs: Where the run directories are.
        around: What is known beside the files.
    """
    path = Path(name)
    try:
        path = _path(name)
        if _is_job(path):
            if job is not None:
                raise ProfileError(f"{path}: is a job file, and --job goes with a profile")
            return _shown(path), job_findings(path, runs=runs, around=around)
        said = profile_findings(path, around=around)
        if job is not None:
            said += job_findings(job, runs=runs, around=around, site=path)
    except InputError as problem:
        return _shown(path), (_unusable(_shown(path), problem),)
    return _shown(path), said


def _path(name: str) -> Path:
    """Return the file called ``name``; an existing file goes before a profile of that name.

    Raises:
        ProfileError: There is neither.
    """
    if name not in everything() and Path(name).is_file():
        return Path(name)
    return locate(name, base=Path(), own=own_sites())


def _is_job(path: Path) -> bool:
    """Return whether the file is a job's; told by the keys that only one of the two has.

    Raises:
        ProfileError: It cannot be read, or it is neither.
    """
    keys = read_yaml(path, error=ProfileError).keys()
    jobs, sites = len(keys & _ONLY_JOB), len(keys & _ONLY_SITE)
    if jobs == sites:
        raise ProfileError(
            f"{path}: is neither a site profile (with `fabric:` or `extends:`) nor a job file (with"
            " `site:` and `script:` or `train:`)"
        )
    return jobs > sites


def profile_findings(path: Path, *, around: Surroundings) -> tuple[Finding, ...]:
    """Return what there is to say of the profile in ``path``.

    Raises:
        ProfileError: It cannot be used.
    """
    profile = read_profile(path, own=own_sites())
    return lint(of_profile(profile, file=_shown(path), around=around))


def job_findings(
    path: Path, *, runs: Path, around: Surroundings, site: Path | None = None
) -> tuple[Finding, ...]:
    """Return what there is to say of a job, on its own site or on the one in ``site``.

    Raises:
        InputError: The job or its profile cannot be used.
    """
    spec = load_job(path)
    where = site or locate(spec.site, base=path.absolute().parent, own=own_sites())
    profile = read_profile(where, own=own_sites())
    run_dir = Path(os.path.abspath(runs)) / spec.name  # noqa: PTH100 (links stay)
    found = spec_findings(
        spec,
        profile,
        file=_shown(path),
        site_file=_shown(where),
        run_dir=run_dir,
        around=around,
    )
    told = any(one.level == "error" for one in found)
    return (*found, *_refused(spec, profile, _shown(path), run_dir, told=told))


def _refused(
    spec: JobSpec, profile: SiteProfile, file: str, run_dir: Path, *, told: bool
) -> Iterator[Finding]:
    """Yield why `fsdpq submit` would refuse the job.

    Args:
        spec: The job.
        profile: Its site.
        file: The job's file.
        run_dir: Where the run would be.
        told: Whether the rules found an error already, which is then likely the same one.
    """
    try:
        check_script(spec)
    except SpecError as problem:
        yield _refusal(file, problem)
    if told:
        return
    try:
        settled = planning.settle(spec, profile)
        planning.plan(
            settled, profile, layout=RunLayout(run_dir), cwd=Path.cwd(), python=sys.executable
        )
    except SpecError as problem:
        yield _refusal(file, problem)


def _refusal(file: str, problem: SpecError) -> Finding:
    key, _, why = str(problem).partition(": ")
    why, _, do = why.partition("; ")
    return Finding(
        rule="refused",
        level="error",
        file=file,
        key=key,
        value="",
        why=why,
        do=do or "correct it: `fsdpq submit` refuses the job",
        since=None,
        source="fsdpq submit",
    )


def spec_findings(
    spec: JobSpec,
    profile: SiteProfile,
    *,
    file: str,
    site_file: str,
    run_dir: Path,
    around: Surroundings,
) -> tuple[Finding, ...]:
    """Return what there is to say of a job that was read, on a profile that was read."""
    case = of_job(
        spec, profile, file=file, site_file=site_file, run_dir=str(run_dir), around=around
    )
    return lint(case)


def _shown(path: Path) -> str:
    """Return a shipped profile as its name, another file as its path."""
    return path.stem if path.stem in shipped() and _is_shipped(path) else str(path)


def _is_shipped(path: Path) -> bool:
    return path.absolute() == locate(path.stem, base=Path()).absolute()


def _unusable(file: str, problem: InputError) -> Finding:
    return Finding(
        rule="unusable",
        level="error",
        file=file,
        key="",
        value="",
        why=str(problem),
        do="correct it; nothing else was looked at",
        since=None,
        source="fsdpq: the schema of profiles and job files",
    )
