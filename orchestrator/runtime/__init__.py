"""The contract between fsdpq and a training script. Works without torch until ranks must agree.

    from orchestrator import runtime

    run = runtime.attach()                      # first thing, before torch is imported
    with runtime.guard(run):                    # an exception leaves an error file, not a hang
        ...                                     # init_process_group, model, optimizer
        checkpoint = run.resume()               # the newest complete one, the same on all ranks
        for step in range(checkpoint.step if checkpoint else 0, steps):
            train(step)
            run.heartbeat(step + 1)
            if notice := run.should_stop():     # all ranks agree
                with run.checkpoint(step + 1) as folder:
                    dcp.save(state, checkpoint_id=folder)
                run.stopped(step=step + 1, reason=notice.signal)
                break
        else:
            run.finished(step=steps)

The launcher sets FSDPQ_RUN_DIR, FSDPQ_CHECKPOINT_DIR, FSDPQ_ATTEMPT, FSDPQ_NOTICE_FILE and
FSDPQ_NOTICE_SIGNALS; torchrun sets RANK and its like. Without them the script runs on its own.
"""

from orchestrator.runtime.fence import SupersededError
from orchestrator.runtime.guard import guard
from orchestrator.runtime.notices import Notice
from orchestrator.runtime.run import Run, attach

__all__ = ["Notice", "Run", "SupersededError", "attach", "guard"]
