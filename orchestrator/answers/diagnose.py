"""`fsdpq diagnose`: from an attempt of a run, or from any files, to a diagnosis. Reads only."""

from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ProfileError, RunError
from orchestrator.fabric.clues import Clue
from orchestrator.fabric.diagnosis import Diagnosis
from orchestrator.fabric.examine import ends, examine
from orchestrator.fabric.promise import Promise
from orchestrator.fabric.reading import number_of
from orchestrator.fabric.sources import nccl_logs, no_text, of_paths, rank_logs
from orchestrator.home import own_sites
from orchestrator.launchplan import promise
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.nodelist import expand
from orchestrator.profile import load_profile
from orchestrator.rundir.attempt import Attempt, Finding
from orchestrator.rundir.cause import Cause
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import facts, store

# After all that stands in the files themselves.
_LATER = 1 << 24
# A log of an attempt that is larger is not searched for the number of a line.
_SEARCHED = 16 << 20


def of_site(site: str) -> Promise:
    """Return what the profile called ``site`` promises, the user's own or a shipped one.

    Raises:
        ProfileError: There is none, or it does not read.
    """
    return promise.of_site(load_profile(site, base=Path.cwd(), own=own_sites()))


def of_files(paths: Sequence[Path], wanted: Promise | None) -> Diagnosis:
    """Return what the logs ``paths`` say; of folders, all logs in them.

    Raises:
        RunError: One of them is not there, has no logs in it, or is no text.
    """
    chosen = of_paths(paths)
    if chosen.missing:
        raise RunError(f"{chosen.missing[0]}: there is no such run, log or folder with logs in it")
    for path in paths:
        if path.is_file() and (what := no_text(path)):
            raise RunError(f"{path}: is {what} and no log; unpack it, or name a text file")
    return examine(chosen.sources, wanted, more=ends(chosen.sources))


def of_run(layout: RunLayout, number: int | None, wanted: Promise | None) -> Diagnosis:
    """Return what an attempt of a run left behind says.

    Args:
        layout: The run.
        number: The attempt; the newest if None.
        wanted: What its site promises; as it was when the run was submitted if None.

    Raises:
        RunError: There is no such attempt, or the run does not read.
    """
    plan = store.load_plan(layout)
    attempt = _attempt(layout, number)
    files, nodes = layout.attempt(attempt.number), expand(attempt.nodes)
    ranks = rank_logs(files.logs, nproc_per_node=plan.nproc_per_node, nodes=nodes)
    ended = facts.ended(layout, attempt)
    well = attempt.outcome in ("finished", "stopped") or attempt.action == "finished"
    return examine(
        [*nccl_logs(files.nccl), *ranks],
        wanted or plan.fabric or _looked_up(plan),
        more=[_clue(f, order) for order, f in enumerate(ended.findings)],
        well=well,
        nodes=len(nodes) or plan.nodes,
    )


def _attempt(layout: RunLayout, number: int | None) -> Attempt:
    if number is None:
        found = facts.latest(layout)
        if found is None:
            raise RunError(f"{layout.name}: no attempt has started yet; see `fsdpq status`")
        return found
    found = facts.one(layout, number)
    if found is None:
        raise RunError(f"{layout.name}: there is no attempt {number}")
    return found


def _looked_up(plan: LaunchPlan) -> Promise | None:
    """Return what the site of a run of an older version promises, if it can still be asked."""
    try:
        return of_site(plan.site)
    except ProfileError:
        return None


def _clue(finding: Finding, order: int) -> Clue:
    # What ended well at the batch shell's own hands is no fault.
    text = "" if finding.cause is Cause.NOTICE else finding.line or finding.what
    number = number_of(Path(finding.file), finding.line, most=_SEARCHED) if finding.line else 0
    return Clue(finding=finding, text=text, file=finding.file, number=number, order=_LATER + order)
