"""The questions of `fsdpq init`, to a person at a terminal."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from orchestrator.errors import SpecError

OWN_TRAINER = "own"
_HOW_MANY = "How many nodes should the job have"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks on the terminal, or takes the default."""

    yes: bool

    def ask(self, text: str, default: str) -> str:
        """Return the answer.

        Raises:
            UsageError: There is nobody to answer.
            KeyboardInterrupt: Ctrl-C was the answer.
        """
        if self.yes:
            return default
        try:
            return str(click.prompt(text, default=default, err=True)).strip()
        except click.Abort as end:
            if isinstance(end.__context__, KeyboardInterrupt):  # click hides which of the two
                raise end.__context__ from None
            raise click.UsageError(
                "there is no answer to that question, and nothing was written; --yes takes the"
                " defaults, and each question has an option (--script, --nodes, --account)"
            ) from None

    def until_right(self, text: str, default: str, read: Callable[[str], T]) -> T:
        """Return what ``read`` makes of the answer; on a terminal a wrong one is asked for again.

        Raises:
            SpecError: The answer is wrong, and nobody is there to give another.
            UsageError: There is nobody to answer.
        """
        while True:
            answer = self.ask(text, default)
            try:
                return read(answer)
            except SpecError as problem:
                if self.yes or not sys.stdin.isatty():
                    raise
                click.echo(f"Error: {problem}", err=True)


def script(ask: Asker, given: str | None, directory: Path) -> str | None:
    """Return the script as the job file names it; None for the own trainer.

    Raises:
        SpecError: There is no such file.
    """
    if given is not None:
        return _script_file(given, directory)
    question = "Training script (own: fsdpq's own trainer, a small Llama)"
    return ask.until_right(question, OWN_TRAINER, lambda text: _script_file(text, directory))


def _script_file(text: str, directory: Path) -> str | None:
    if text == OWN_TRAINER:
        return None
    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise SpecError(f"--script: there is no file {path}")
    folder = directory.absolute()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def nodes(ask: Asker, given: int | None, most: int | None) -> int:
    """Return how many nodes.

    Raises:
        SpecError: The answer is no such number.
    """
    if given is not None or most == 1:
        return given or 1
    upto = f", up to {most}" if most else ""
    question = f"How many nodes should the job have (1 to {most})" if most else _HOW_MANY

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= (most or int(text)):
            raise SpecError(f"--nodes: {text!r} is no number of nodes{upto}")
        return int(text)

    return ask.until_right(question, "2", read)


def account(ask: Asker, choice: Sequence[str]) -> str:
    """Return which of these accounts.

    Raises:
        SpecError: The answer is none of them.
    """

    def read(text: str) -> str:
        if text not in choice:
            raise SpecError(f"--account: {text!r} is none of yours there: {', '.join(choice)}")
        return text

    return ask.until_right(f"Which account ({', '.join(choice)})", choice[0], read)
