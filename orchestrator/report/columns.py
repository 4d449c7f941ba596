"""Columns of text. Pure."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Return ``rows`` as left-aligned columns, without trailing spaces."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def fitted(rows: Sequence[Sequence[str]], *, width: int | None) -> str:
    """Return ``rows`` as columns whose lines are cut where they are longer than ``width``."""
    lines = columns(rows).splitlines()
    if width is None:
        return "\n".join(lines)
    return "\n".join(line if len(line) <= width else _cut(line, width) for line in lines)


def _cut(line: str, width: int) -> str:
    return f"{line[: max(width - 3, 0)].rstrip()}..."[:width]
