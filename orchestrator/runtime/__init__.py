"""The contract between fsdpq and a training script. Works without torch until ranks must agree.

    from orchestrator import runtime

    run = runtime.attach()                      # first thing, before torch is imported
    with runtime.guard(run):                    # an exception leaves an error file, not a hang
        ...                                     # init_process_group, model, optimizer
        checkpoint = run.resume()               # the newest complete one, the same on all ranks
        if checkpoint:
            dcp.load(state, checkpoint_id=checkpoint.path)
        for step in range(run.step + 1, steps + 1):
            ...                                 # train
            run.log(step, loss=loss)            # for `fsdpq status`
            run.heartbeat(step)
            notice = run.should_stop()          # all ranks agree
            if notice or step % 100 == 0 or step == steps:
                with run.checkpoint(step) as folder:
                    dcp.save(state, checkpoint_id=folder)
            if notice and step < steps:
                run.stopped(step=step, reason=notice.signal)
                break
        else:
            run.finished(step=steps)

What takes minutes between two steps is wrapped in `run.busy("evaluating")`, or it counts as a hang.

The launcher sets FSDPQ_RUN_DIR, FSDPQ_CHECKPOINT_DIR, FSDPQ_ATTEMPT, FSDPQ_NOTICE_FILE,
FSDPQ_NOTICE_SIGNALS, FSDPQ_LOCAL_DIR and FSDPQ_HANG (limits in seconds, or "off"); torchrun sets
RANK and its like. Without them the script runs on its own.
"""

from orchestrator.runtime.alone import Agreement
from orchestrator.runtime.attaching import attach
from orchestrator.runtime.fence import SupersededError
from orchestrator.runtime.guard import guard
from orchestrator.runtime.notices import Notice
from orchestrator.runtime.run import Run

__all__ = ["Agreement", "Notice", "Run", "SupersededError", "attach", "guard"]
