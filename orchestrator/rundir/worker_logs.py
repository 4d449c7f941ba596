"""Whether torchrun has started workers, by the logs that it opens for them."""

from orchestrator.rundir.layout import AttemptLayout


def have_begun(files: AttemptLayout) -> bool:
    """Return whether there is a log of any worker; true too where that cannot be told."""
    try:
        return any(path.is_file() for path in files.logs.rglob("*"))
    except OSError:
        return True
