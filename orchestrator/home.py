"""Where a user keeps what belongs to no run."""

import os
from contextlib import suppress
from pathlib import Path


def own_sites() -> Path:
    """Return the user's folder of site profiles, which need not be there.

    $XDG_CONFIG_HOME/fsdpq/sites, or ~/.config/fsdpq/sites (XDG Base Directory Specification).
    """
    given = Path(os.environ.get("XDG_CONFIG_HOME") or "")
    with suppress(RuntimeError):  # a user without a home
        given = given if given.is_absolute() else Path("~/.config").expanduser()
    return given / "fsdpq" / "sites"
