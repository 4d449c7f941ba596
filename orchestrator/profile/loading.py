"""Find and read a site profile: a shipped one, one of the user's folder, or a file."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from orchestrator import resources
from orchestrator.errors import ProfileError
from orchestrator.keys.fields import read_yaml, validate
from orchestrator.profile.schema import SiteProfile, facts_of


def shipped() -> list[str]:
    """Return the names of the profiles that come with fsdpq, sorted."""
    entries = resources.root("site").iterdir()
    return sorted(e.name.removesuffix(".yaml") for e in entries if e.name.endswith(".yaml"))


def own_names(own: Path | None) -> list[str]:
    """Return the names of the profiles in the user's folder, sorted; none where there is none."""
    try:
        return sorted(path.stem for path in own.glob("*.yaml")) if own else []
    except OSError:
        return []


def load_profile(site: str, *, base: Path, own: Path | None = None) -> SiteProfile:
    """Return the profile called ``site``: a name, or a path to a file of the user's.

    A profile of the user's folder goes before a shipped one of that name, and may extend it.

    Args:
        site: A name, or a path, which has a slash or ends in .yaml.
        base: What relative paths are relative to.
        own: The user's folder of profiles.

    Raises:
        ProfileError: There is no such profile, or it cannot be used.
    """
    return read_profile(locate(site, base=base, own=own), own=own)


def read_profile(path: Path, *, own: Path | None = None) -> SiteProfile:
    """Return the profile in the file ``path``.

    Raises:
        ProfileError: It cannot be used.
    """
    data = read_yaml(path, error=ProfileError)
    if (parent := data.get("extends")) is not None:
        data = _extend(parent, data, path=path, own=own)
    return validate(SiteProfile, data, where=path, error=ProfileError)


def _same(one: Path, other: Path) -> bool:
    """Return whether two paths lead to one file, however they are spelled."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def _shipped_folder() -> Path:
    return Path(str(resources.root("site")))


def locate(site: str, *, base: Path, own: Path | None = None) -> Path:
    """Return the file of the profile called ``site``; a path may lead to nothing.

    Raises:
        ProfileError: There is no profile of that name.
    """
    if site.endswith((".yaml", ".yml")) or "/" in site:
        try:
            return base / Path(site).expanduser()
        except RuntimeError as problem:  # ~somebody who has no home here
            raise ProfileError(f"site: {site}: {problem}") from None
    if own is not None and site in own_names(own):
        return own / f"{site}.yaml"
    if site in shipped():
        return Path(str(resources.root("site").joinpath(f"{site}.yaml")))
    raise ProfileError(f"site: {_unknown(site, own)}")


def _unknown(site: str, own: Path | None) -> str:
    """Return that there is no such profile, which ones have a name like it, and what to do."""
    names = sorted({*shipped(), *own_names(own)})
    near = get_close_matches(site, names, n=3) or [one for one in names if _related(one, site)]
    hint = f" Did you mean {' or '.join(near[:5])}?" if near else ""
    mine = f", yours in {own} too" if own_names(own) else ""
    return (
        f"there is no profile {site!r}.{hint} `fsdpq sites list` shows the shipped ones{mine};"
        " for one of your own give the path of its file; `fsdpq sites detect` writes one"
    )


def _related(name: str, given: str) -> bool:
    """Return whether ``given`` begins ``name``, or stands in it: `kempner`, `h100`."""
    return len(given) > 2 and given.lower() in name


def _extend(name: object, data: dict[str, Any], *, path: Path, own: Path | None) -> dict[str, Any]:
    """Lay ``data`` over its parent: one level.

    Mappings are merged, null takes away what the parent says, everything else is replaced.
    """
    if not isinstance(name, str):
        raise ProfileError(f"{path}: extends: must name a profile")
    # One's own may have the name of the shipped one that it changes, and shipped ones mean shipped
    # ones.
    itself = own is not None and _same(path, own / f"{name}.yaml")
    others = None if itself or path.parent == _shipped_folder() else own
    try:
        where = locate(name, base=path.parent, own=others)
    except ProfileError as problem:
        text = str(problem).removeprefix("site: ")
        raise ProfileError(f"{path}: extends: {text}") from None
    base = read_yaml(where, error=ProfileError)
    if "extends" in base:
        raise ProfileError(f"{path}: extends: {name!r} extends another one; one level is allowed")
    parent = validate(SiteProfile, base, where=where, error=ProfileError)
    merged = _merge(base, data)
    return merged | _sources(parent, data, path, left=list(facts_of(merged)))


def _sources(
    parent: SiteProfile, data: dict[str, Any], path: Path, *, left: list[str]
) -> dict[str, Any]:
    """Return where the facts of both come from: each keeps the source of who says it.

    Args:
        parent: The profile below.
        data: What goes over it, from the file ``path``.
        path: Where ``data`` is from.
        left: The facts of both together.
    """
    given, own = data.get("source", []), data.get("evidence", {})
    if not isinstance(given, list) or not isinstance(own, dict):
        return {}  # the check of the whole says what is wrong with it
    mine = [fact for fact in facts_of(data) if fact in left]
    said = dict.fromkeys(mine, {"source": str(path)} if not given else None)
    evidence = {
        fact: parent.evidence_of(fact).model_dump() for fact in parent.facts() if fact in left
    }
    for fact, source in said.items():
        evidence.pop(fact, None)
        if source is not None:
            evidence[fact] = source
    others = [line for line in parent.source if line not in given]
    return {"source": given + others, "evidence": evidence | own}


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
            continue
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged
