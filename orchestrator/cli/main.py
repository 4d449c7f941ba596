"""The group of commands, the options they share, and where every error is shown."""

import errno
import importlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from orchestrator import __version__
from orchestrator.errors import FsdpqError
from orchestrator.interrupts import exit_code
from orchestrator.printable import printable

F = TypeVar("F", bound=Callable[..., Any])

# Command -> module. Only the module of the command that is called gets imported: help stays quick.
_COMMANDS = {
    "init": "init",
    "plan": "plan",
    "render": "submit",
    "submit": "submit",
    "status": "look",
    "logs": "look",
    "checkpoints": "look",
    "export": "export",
    "watch": "act",
    "cancel": "act",
    "requeue": "act",
    "drill": "act",
    "sites": "sites",
    "diagnose": "diagnose",
    "prepare": "prepare",
}
_HELP = {
    "init": "Write a first job file for this cluster.",
    "plan": "Say what a job will need and how fast it will be.",
    "render": "Write the scripts of a job; submit nothing.",
    "submit": "Start a run.",
    "status": "Show runs and attempts, and what happens next.",
    "logs": "Print what a run printed.",
    "checkpoints": "Show each checkpoint: complete, or why not.",
    "export": "Write a model as Hugging Face loads it.",
    "watch": "Look after runs: restart what has to be restarted.",
    "cancel": "Save, then stop for good.",
    "requeue": "Save, then start again now.",
    "drill": "Rehearse a preemption and report what was lost.",
    "sites": "Site profiles: what there are, and what they say.",
    "diagnose": "Say which network was used and what failed first; measure it.",
    "prepare": "Turn text into token shards for training.",
}


def interrupted(interrupt: KeyboardInterrupt, what_is_left: str) -> click.exceptions.Exit:
    """Say that a signal ended this command and what that leaves; return the end to raise."""
    with suppress(OSError):  # the terminal may be what went away
        click.echo(f"\ninterrupted; {what_is_left}", err=True)
    return click.exceptions.Exit(exit_code(interrupt))


class Commands(click.Group):
    """A group that imports a command only to call it, and shows our errors as one message.

    Attributes:
        modules: Command to the module of this package that has it as NAME_command.
        helps: Command to what it does, in a line.
    """

    modules: ClassVar[Mapping[str, str]] = _COMMANDS
    helps: ClassVar[Mapping[str, str]] = _HELP

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which help has them."""
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command called ``cmd_name``."""
        if cmd_name not in self.modules:
            return None
        module = importlib.import_module(f"orchestrator.cli.{self.modules[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.helps[name]) for name in self.modules])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of ours or of a file is one message and exit code 1."""
        try:
            return super().invoke(ctx)
        except FsdpqError as error:
            raise click.ClickException(printable(str(error))) from None
        except KeyboardInterrupt as interrupt:
            raise interrupted(interrupt, "runs go on by themselves") from None
        except OSError as error:  # a file or a folder that cannot be used; click has its own EPIPE
            if error.errno == errno.EPIPE:
                raise
            # Without a name it was no file that we opened: as a rule standard output.
            text = str(error) if error.filename else f"cannot write: {error.strerror or error}"
            raise click.ClickException(printable(text)) from None


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", prog_name="fsdpq")
def main() -> None:
    """Multi-node FSDP2 jobs on Slurm that survive preemption.

    Submit a job file, go home; it comes back from the newest complete checkpoint until the last
    step is done.
    """


def runs_option(command: F) -> F:
    """Add --runs: where the run directories are."""
    return click.option(
        "--runs",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("runs"),
        envvar="FSDPQ_RUNS",
        show_default=True,
        show_envvar=True,
        help="Directory of the run directories, on a file system that all nodes share.",
    )(command)


def json_option(command: F) -> F:
    """Add --json: data instead of text."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def job_options(command: F) -> F:
    """Add the argument JOB and the options --site, --set and --live-code."""
    command = click.option(
        "--live-code",
        "live_code",
        is_flag=True,
        help="Keep no copy of the program: each attempt runs the files as they are then.",
    )(command)
    command = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a key of the job file, such as nodes=4 or train.lr=1e-4.",
    )(command)
    command = click.option(
        "--site", metavar="S", help="Site profile: a shipped name or the path of a file."
    )(command)
    return click.argument("job", type=click.Path(path_type=Path))(command)


def echo_json(data: Any) -> None:
    """Print ``data`` as JSON on standard output."""
    click.echo(json.dumps(data, indent=2))
