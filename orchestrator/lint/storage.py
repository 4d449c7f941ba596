"""Rules on where checkpoints and logs go. Pure."""

import re
from collections.abc import Iterator

from orchestrator.lint.case import Case, Place
from orchestrator.lint.paths import storage_of
from orchestrator.lint.rule import Hit, rule

# A run can wait in the queue, and a user be on holiday, for longer than this.
_SOON_DAYS = 30
_OUTPUT = re.compile(r"-*[\w-]*(ckpt|checkpoint|save|output|out[-_]?dir)[\w-]*", re.IGNORECASE)


def _kept(case: Case) -> Iterator[tuple[str, Place]]:
    """Yield the paths that have to outlive an attempt."""
    job = case.job
    if job is None or case.profile.scheduler == "local":
        return
    if job.run_dir:
        yield job.run_dir, job.place("--runs", job.run_dir)
    previous = ""
    for number, argument in enumerate(job.spec.args):
        option, equals, value = argument.partition("=")
        name, path = (option, value) if equals else (previous, argument)
        if path.startswith(("/", "$")) and _OUTPUT.fullmatch(name):
            yield path, job.place(f"args.{number}", argument)
        previous = argument


@rule(
    "error",
    why="each node has such a file system of its own: the other nodes, and the node that a restart"
    " gets, see nothing there",
    do="choose a directory on a file system that all nodes share",
    source="the site profile: storage; /tmp, /var/tmp, /dev/shm and /run anywhere",
)
def path_node_local(case: Case) -> Iterator[Hit]:
    """Checkpoints or the run directory on a node's own disk."""
    for path, place in _kept(case):
        found = storage_of(path, case.profile.storage, case.around.environ)
        if found and found[1].node_local:
            yield Hit(at=place, why=f"{found[0]}: {path_node_local.why}")
        elif re.match(r"\$\{?(SLURM_)?TMPDIR\b", path):
            yield Hit(at=place)


@rule(
    "info",
    why="files are deleted there after some days without access",
    do="copy the last checkpoint elsewhere when the run is done",
    source="the site profile: storage",
)
def path_purged(case: Case) -> Iterator[Hit]:
    """Checkpoints where files are deleted; a warning where that is within a month."""
    for path, place in _kept(case):
        found = storage_of(path, case.profile.storage, case.around.environ)
        if found and (days := found[1].purge_days):
            why = f"{found[0]} deletes files after {days} days without access"
            soon = days < _SOON_DAYS
            if soon:
                why += ", also those of a run that waits in the queue for that long"
            yield Hit(at=place, why=why, level="warn" if soon else None)
