"""`fsdpq sites`: the group; each of its commands has a module of its own."""

from collections.abc import Mapping
from typing import ClassVar

import click

from orchestrator.cli.main import Commands


class _SiteCommands(Commands):
    modules: ClassVar[Mapping[str, str]] = {
        "detect": "detect",
        "lint": "lint",
        "list": "sites_look",
        "show": "sites_look",
    }
    helps: ClassVar[Mapping[str, str]] = {
        "detect": "Ask Slurm what this cluster is, and write a profile of it.",
        "lint": "Find mistakes in profiles and job files.",
        "list": "List the profiles there are.",
        "show": "Show each fact of a profile, with its source.",
    }


@click.command("sites", cls=_SiteCommands)
def sites_command() -> None:
    """Site profiles: what the clusters are, each fact with its source."""
