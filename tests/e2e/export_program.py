"""`fsdpq export` in a process of its own: `python -m tests.e2e.export_program HOW ARGUMENTS...`.

HOW is `killed`, then it dies as it reads the first weight, or `measured`, then it prints how many
bytes of memory the export took.
"""

import os
import sys
from typing import Any

from orchestrator.cli import main
from orchestrator.export import exporting
from orchestrator.export.saved import Saved
from orchestrator.trainer.host_usage import forget_peak, peak_bytes, used_bytes


def killed() -> None:
    def read(self: Saved, name: str) -> Any:
        os.kill(os.getpid(), 9)

    Saved.read = read  # type: ignore[method-assign]


def measured() -> None:
    plain = exporting.export

    def export(*args: Any, **kwargs: Any) -> Any:
        forget_peak()
        before = used_bytes()
        exported = plain(*args, **kwargs)
        print(peak_bytes() - before)
        return exported

    exporting.export = export


if __name__ == "__main__":
    how, *arguments = sys.argv[1:]
    {"killed": killed, "measured": measured}[how]()
    main(arguments)
