"""What the scripts that measure share: what they ran on, and files that grow row by row."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_PACKAGES = ("torch", "transformers", "accelerate", "torchao", "torchtitan")


def about() -> dict[str, str]:
    """Return hardware and versions. It starts CUDA, so not in a process that is to fork."""
    return {"GPUs": _gpus(), "Python": platform.python_version(), **_versions()}


def about_lines(found: dict[str, str]) -> list[str]:
    """Return hardware, versions and the day as Markdown."""
    names = ", ".join(f"{name} {version}" for name, version in found.items() if name != "GPUs")
    return [f"{found['GPUs']}; {names}; {time.strftime('%Y-%m-%d')}.", ""]


def version(package: str) -> str:
    """Return the version of ``package``; empty where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _versions() -> dict[str, str]:
    return {name: version(name) or "none" for name in _PACKAGES}


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no GPU (gloo)"
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    name, count = torch.cuda.get_device_name(0), torch.cuda.device_count()
    return f"{count} x {name}, CUDA {torch.version.cuda}, NCCL {nccl}"


class Results:
    """Rows as they are measured: a line each in NAME.jsonl, and all of them in NAME.md.

    Both are written after each row, so that a script which runs out of time loses none.

    Args:
        folder: Where; None: nowhere.
        name: Of the files.
        text: Makes Markdown of the rows so far.
    """

    def __init__(
        self, folder: Path | None, name: str, text: Callable[[Sequence[Record]], str]
    ) -> None:
        self.rows: list[Record] = []
        self._folder, self._name, self._text = folder, name, text
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.jsonl").write_text("")

    @property
    def markdown(self) -> str:
        """All rows so far."""
        return self._text(self.rows)

    def add(self, row: Record) -> None:
        """Keep ``row``, and say it."""
        self.rows.append(row)
        line = json.dumps(row)
        print(f"measured: {line}", flush=True)
        if self._folder is None:
            return
        with (self._folder / f"{self._name}.jsonl").open("a") as file:
            file.write(f"{line}\n")
        (self._folder / f"{self._name}.md").write_text(self.markdown + "\n")


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]
