"""Where the shipped data files are: the only module that knows."""

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal


def root(kind: Literal["templates", "site"]) -> Traversable:
    """Return the directory of shipped ``kind`` files, installed or in a checkout.

    Raises:
        FileNotFoundError: The installation lacks them.
    """
    package = files("orchestrator")
    installed = package.joinpath(kind)
    if installed.is_dir():  # a wheel: pyproject.toml copies them beside the code
        return installed
    # The check for pyproject.toml keeps a broken wheel from picking up some other
    # project's site-packages/templates.
    if package.joinpath("../pyproject.toml").is_file():
        return package.joinpath("..", kind)
    raise FileNotFoundError(f"fsdpq was installed without its {kind}/ files; install it again")


def recorder() -> str:
    """Return the text of the script that notes what an attempt runs with."""
    return files("orchestrator").joinpath("recorder.py").read_text(encoding="utf-8")
