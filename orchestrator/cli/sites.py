"""`fsdpq sites`: the group; each of its commands has a module of its own."""

from collections.abc import Mapping
from typing import ClassVar

import click

from orchestrator.cli.main import Commands


class _SiteCommands(Commands):
    modules: ClassVar[Mapping[str, str]] = {
        "lint": "lint",
    }
    helps: ClassVar[Mapping[str, str]] = {
        "lint": "Find mistakes in profiles and job files.",
    }


@click.command("sites", cls=_SiteCommands)
def sites_command() -> None:
    """Site profiles: what the clusters are, each fact with its source."""
