"""torchtitan that fsdpq can preempt: its own Trainer, with fsdpq between it and its checkpoints.

Nothing of torchtitan is changed or copied. After each step it calls `checkpointer.save`; that is
where the ranks agree on a notice, and where a checkpoint goes into a folder that gets its name only
when all ranks have written. (torchtitan takes a folder for a checkpoint as soon as it has a
`.metadata`, and saves over what a killed start left there.) The arguments are torchtitan's own:

    args: [--module, llama3, --config, llama3_8b, --training.steps, "100000"]

`checkpoint.interval` and `checkpoint.keep_latest_k` are heeded, `checkpoint.async_mode` is not: all
saves are synchronous. What torchtitan exports at the end (`checkpoint.last_save_*`) is below
`dump_folder`. For torchtitan 0.3, and 0.2.2 with `--job.config_file` in place of the two names.

    fsdpq submit jobs/torchtitan_run.yaml --follow
"""

import sys

from orchestrator import runtime  # fsdpq's package is called orchestrator

run = runtime.attach()  # before torch is imported: a notice must not kill what starts

import torch.distributed as dist
from torchtitan.config import ConfigManager
from torchtitan.tools.logging import init_logger


class Checkpoints:
    """Stands where the trainer's checkpoint manager stood, and uses it to read and write."""

    def __init__(self, trainer, config) -> None:
        self.inner, self.config = trainer.checkpointer, config
        self.notice: runtime.Notice | None = None

    def load(self, step: int = -1) -> bool:
        checkpoint = run.resume()  # the newest complete one, the same on all ranks
        if checkpoint is None:
            return self.inner.load(step)  # `checkpoint.initial_load_path`, if there is one
        with run.busy("loading"):
            states = self.inner._states_to_load(model_only=False)
            self.inner.dcp_load(
                states, checkpoint_id=str(checkpoint.path), from_hf=False, from_quantized=False
            )
        return True

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        """Called after each step."""
        run.heartbeat(curr_step)
        self.notice = run.should_stop()  # the same on all ranks
        if not (self.notice or last_step or curr_step % self.config.interval == 0):
            return False
        keep = self.config.keep_latest_k or sys.maxsize  # to torchtitan 0 is all of them
        with run.checkpoint(curr_step, keep_last=keep) as folder:
            states = self.inner._flattened_model_states_sd()
            mode = self.inner.async_mode  # "disabled", see `configure`
            self.inner.dcp_save(states, checkpoint_id=str(folder), async_mode=mode)
        return True

    def maybe_wait_for_staging(self) -> None:
        """Nothing is ever staged."""

    def close(self) -> None:
        self.inner.close()


def configure():
    """Return torchtitan's configuration, from the command line."""
    config = ConfigManager().parse_args()
    config.checkpoint.enable = True
    config.checkpoint.async_mode = "disabled"
    return config


def build(config):
    """Return torchtitan's trainer."""
    if hasattr(config, "build"):
        return config.build()
    from torchtitan.train import Trainer  # 0.2

    return Trainer(config)


def tie(trainer, checkpoints: Checkpoints) -> None:
    """Let the trainer ask fsdpq when to stop, and tell it what a step gave."""
    goes_on, log = trainer.should_continue_training, trainer.metrics_processor.log
    validator = getattr(trainer, "validator", None)

    def log_too(step, loss, worst_loss, grad_norm, *args, **kwargs):
        run.log(step, loss=loss, grad_norm=grad_norm)
        log(step, loss, worst_loss, grad_norm, *args, **kwargs)

    def validate_unless_stopping(*args, **kwargs):
        if not checkpoints.notice:
            with run.busy("evaluating"):  # no step for minutes, and yet no hang
                validate(*args, **kwargs)

    trainer.checkpointer = checkpoints
    trainer.should_continue_training = lambda: goes_on() and not checkpoints.notice
    trainer.metrics_processor.log = log_too
    if validator is not None:
        validate, validator.validate = validator.validate, validate_unless_stopping


@runtime.guard(run)  # an exception leaves an error file and ends all ranks, instead of a hang
def main() -> None:
    init_logger()
    config = configure()
    trainer = build(config)
    checkpoints = Checkpoints(trainer, config.checkpoint)
    tie(trainer, checkpoints)
    trainer.train()
    if checkpoints.notice and trainer.step < config.training.steps:
        run.stopped(step=trainer.step, reason=checkpoints.notice.signal)  # fsdpq brings it back
    else:
        with run.busy("exporting"):
            checkpoints.inner.save(trainer.step, last_step=True)
        run.finished(step=trainer.step)  # and now it does not
    trainer.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
