"""A job and its site, as the files of the user have them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ProfileError
from orchestrator.home import own_sites
from orchestrator.profile import SiteProfile, locate, read_profile
from orchestrator.spec.job import JobSpec, load_job


@dataclass(frozen=True, slots=True)
class Described:
    """A job and its site as their files have them."""

    job: Path
    spec: JobSpec
    site_file: Path
    profile: SiteProfile


def read(job: Path, *, site: str | None, overrides: Sequence[str]) -> Described:
    """Return the job in the file ``job`` and its site; see `launch.prepare`.

    Raises:
        InputError: One of them cannot be used.
    """
    chosen = [f"site={json.dumps(site, ensure_ascii=False)}"] if site is not None else []
    spec = load_job(job, overrides=[*overrides, *chosen])
    site_file = _site_file(job, spec.site, chosen=bool(chosen))
    return Described(job, spec, site_file, read_profile(site_file, own=own_sites()))


def _site_file(job: Path, site: str, *, chosen: bool) -> Path:
    base = Path.cwd() if chosen else job.absolute().parent
    try:
        return locate(site, base=base, own=own_sites())
    except ProfileError as problem:
        raise ProfileError(f"{'--' if chosen else f'{job}: '}{problem}") from None
