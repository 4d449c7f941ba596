"""Settings that a run keeps from its first step to its last: written into each checkpoint.

The seed is the order of the data, so another one would repeat samples and leave others out. What
the optimizer was made with is loaded with its state, so another learning rate in the job file would
be ignored without a word. The rest would bend the curve in the middle. How the work is shared out
and where results are kept may change; so may `steps`, for a run that is to go on for longer.
"""

from collections.abc import Mapping
from typing import Any

from orchestrator.spec.train import TrainSpec

_OF_TRAIN = frozenset(
    {
        "seed",
        "global_batch",
        "precision",
        "lr",
        "warmup_steps",
        "lr_schedule",
        "min_lr_ratio",
        "weight_decay",
        "betas",
        "clip_norm",
    }
)


def settings(spec: TrainSpec) -> dict[str, Any]:
    """Return them by their keys, in JSON's types."""
    told = spec.model_dump(mode="json", include=set(_OF_TRAIN))
    return {**told, "data.packing": spec.data.packing}


def changed_setting(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the first thing that differs, in words; "" if nothing does.

    What only one of them knows is passed over: another version knows other settings.

    >>> changed_setting({"lr": 0.1, "seed": 1, "old": 2}, {"lr": 0.1, "seed": 3, "new": 4})
    'seed: was 1 and is 3'
    """
    for key in sorted(before.keys() & now.keys()):
        if before[key] != now[key]:
            return f"{key}: was {before[key]!r} and is {now[key]!r}"
    return ""
