"""The learning rate as a function of the step. Pure."""

import math

from orchestrator.spec.train import TrainSpec


def lr_factor(done: int, *, spec: TrainSpec) -> float:
    """Return what `lr` is multiplied by for the step after ``done`` steps.

    Rises in equal parts over the warm-up, then falls to `min_lr_ratio` at the last step.
    """
    if done < spec.warmup_steps:
        return (done + 1) / (spec.warmup_steps + 1)
    if spec.lr_schedule == "constant":
        return 1.0
    left = max(spec.steps - 1 - spec.warmup_steps, 1)
    way = min((done - spec.warmup_steps) / left, 1.0)
    fall = way if spec.lr_schedule == "linear" else (1 - math.cos(math.pi * way)) / 2
    return 1.0 - (1.0 - spec.min_lr_ratio) * fall
