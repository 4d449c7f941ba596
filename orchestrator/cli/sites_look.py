"""`fsdpq sites list` and `fsdpq sites show`."""

import shutil
import sys
from pathlib import Path

import click

from orchestrator import report
from orchestrator.cli.main import echo_json, json_option
from orchestrator.errors import ProfileError
from orchestrator.home import own_sites
from orchestrator.profile import SiteProfile, load_profile, own_names, shipped


@click.command("list")
@click.option("--shipped", "only_shipped", is_flag=True, help="Leave out those in your folder.")
@click.option("--markdown", is_flag=True, help="Print a table of Markdown.")
@json_option
def list_command(only_shipped: bool, markdown: bool, as_json: bool) -> None:
    """List the profiles there are: GPUs, fabric, preemption, source and date.

    Yours, in ~/.config/fsdpq/sites, are among them, and go before a shipped one of that name.
    """
    profiles = _all(None if only_shipped else own_sites())
    if as_json:
        echo_json(report.sites_json(profiles))
    elif markdown:
        click.echo(report.sites_page(profiles))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None
        click.echo(report.sites_table(profiles, width=width))


def _all(own: Path | None) -> list[SiteProfile]:
    """Return all profiles that read; a broken one of the user's does not hide the others."""
    found = []
    for name in sorted({*shipped(), *own_names(own)}):
        try:
            profile = load_profile(name, base=Path.cwd(), own=own)
            # A job file names the file; what stands in it may be another name.
            found.append(profile.model_copy(update={"name": name}))
        except ProfileError as error:
            click.echo(f"passed over: {error}", err=True)
    return found


@click.command("show")
@click.argument("name")
@json_option
def show_command(name: str, as_json: bool) -> None:
    """Show each fact of the profile NAME (or the path of a file), with its source."""
    profile = load_profile(name, base=Path.cwd(), own=own_sites())
    if as_json:
        echo_json(report.site_json(profile))
    else:
        click.echo(report.site_details(profile))
