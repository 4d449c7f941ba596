"""Starts the trainer. What must happen before torch is imported happens here."""

import faulthandler
import os
import sys
from pathlib import Path

from orchestrator import runtime
from orchestrator.errors import RunError


def prepare_environment() -> None:
    """Set what libraries read once, at import or at their first call.

    torchrun exports OMP_NUM_THREADS=1 when it starts several workers and nothing for one; the
    number must not depend on that, since it changes the order of sums.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main() -> None:
    """Run one attempt; exits with 0 when it finished or stopped as agreed."""
    run = runtime.attach()
    faulthandler.enable()  # libraries that abort leave their stacks in the log
    with runtime.guard(run):
        if len(sys.argv) != 2:
            raise RunError("usage: python -m orchestrator.trainer train.json")
        if run.already_finished:
            return
        # Everything below is imported only now: until attach() a notice would kill this process.
        from orchestrator.spec.train import check_batch, load_train, with_overrides

        spec = with_overrides(load_train(Path(sys.argv[1])), run.env.run.overrides)
        check_batch(spec, run.env.world_size)
        prepare_environment()
        if spec.checkpoint.verify == "full":
            _verify_ahead(run, spec.checkpoint.local_copy)
        from orchestrator.trainer.lean import import_transformers

        import_transformers()
        from orchestrator.trainer.loop import train

        train(run, spec)
        sys.stdout.flush()
        sys.stderr.flush()
        # gloo's threads now and then abort an interpreter that takes itself apart.
        os._exit(0)


def _verify_ahead(run: runtime.Run, directory: str | None) -> None:
    from orchestrator.trainer.local_copy import local_copy_of

    local = local_copy_of(directory, run.env)
    run.verify_ahead(local.open_all) if local else run.verify_ahead()


if __name__ == "__main__":
    main()
