"""The job file's `code:`: what of the program a run keeps, and how much of it."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from orchestrator.keys.counts import Count
from orchestrator.keys.fields import Strict, no_control


def _pattern(text: str) -> str:
    no_control(text)
    if not text.strip("/") or text.startswith(("/", "~")) or ".." in text.split("/"):
        raise ValueError(
            "must be a path or a pattern below the top of the repository (without one, below the"
            " folder of the script), such as configs/*.json or data/vocab"
        )
    return text.rstrip("/")


Pattern = Annotated[str, AfterValidator(_pattern)]


class CodeSpec(Strict):
    """What of the program is kept in the run directory.

    Attributes:
        live: Keep nothing; every attempt runs the files as they are then.
        extras: Untracked files to keep too; `*` stays within a folder, `**` crosses folders, and a
            folder stands for all that is in it.
        exclude: Files not to keep, spelled in the same way.
        workdir: Whether the job runs where it was submitted from, or in the kept copy of that.
        max_mib: What the kept files may have together, in MiB.
        max_files: How many they may be.
    """

    live: Annotated[bool, Field(strict=True)] = False
    extras: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()
    workdir: Literal["live", "snapshot"] = "live"
    max_mib: Count = 200
    max_files: Count = 20_000


def _short(value: Any) -> Any:
    if value == "live":
        return {"live": True}
    if not isinstance(value, str):
        return value
    raise ValueError("write `code: live`, or keys below it, such as `code: {extras: [a.json]}`")


Code = Annotated[CodeSpec, BeforeValidator(_short)]
