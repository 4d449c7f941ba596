"""What a copy of the curve is, whoever keeps it."""

from typing import Protocol

from orchestrator.trainer.mirror.curve import Line


class Target(Protocol):
    """Keeps a copy. Any exception of its means that it does not work at the moment."""

    name: str

    def open(self) -> int:
        """Begin; return the last step that it has already, 0 for none."""

    def write(self, line: Line) -> None:
        """Take a line with a step beyond that."""

    def flush(self) -> None:
        """Called when it has all lines there are."""

    def close(self) -> None:
        """End."""
