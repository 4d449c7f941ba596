"""Attempts that a notice ends in a validation: `python -m tests.e2e.cut_program RUN N...`.

Each N is an attempt, in the validation of which (counted from 1; 0 for none) the notice comes. The
attempts are forks of one process that has imported everything.
"""

import os
import sys
from pathlib import Path
from typing import Any

from orchestrator.trainer import __main__ as trainer
from orchestrator.trainer import loop
from orchestrator.trainer.evaluation import Evaluator

assert loop  # imported for the forks


def attempt(run: Path, number: int, cut: int) -> None:
    notice = run / f"notice-{number}"
    os.environ.update(
        FSDPQ_RUN_DIR=str(run), FSDPQ_ATTEMPT=str(number), FSDPQ_NOTICE_FILE=str(notice)
    )
    plain, calls = Evaluator.measure, []

    def measure(self: Evaluator, **options: Any) -> Any:
        calls.append(self)
        if len(calls) == cut:
            notice.write_text("USR2 1\n")
        return plain(self, **options)

    Evaluator.measure = measure  # type: ignore[method-assign]
    sys.argv = ["trainer", str(run / "train.json")]
    trainer.main()


if __name__ == "__main__":
    for number, cut in enumerate(sys.argv[2:], start=1):
        if (child := os.fork()) == 0:
            attempt(Path(sys.argv[1]), number, int(cut))
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(code)
