"""The process that keeps the copies: `python -m orchestrator.trainer.mirror`, its orders on stdin.

The first line is JSON: run, attempt, resumed, metrics (the job's `train.metrics`), config. Another
line, the end of the input, or the end of the parent is the end: it tells the rest, then goes.
"""

import json
import os
import select
import sys
import threading
from pathlib import Path
from typing import Any

from orchestrator.rundir.layout import RunLayout
from orchestrator.spec.train.metrics import MetricsSpec
from orchestrator.trainer.mirror.curve import Curve
from orchestrator.trainer.mirror.keeper import Keeper
from orchestrator.trainer.mirror.target import Target
from orchestrator.trainer.mirror.tensorboard import TensorBoard
from orchestrator.trainer.mirror.wandb import Wandb

_EVERY_S = 2.0
_END_S = 120.0
_NICER = 10


def main() -> None:
    """Keep the copies until the parent says that it is over, or is gone."""
    parent = os.getppid()
    os.nice(_NICER)
    keepers = _keepers(json.loads(sys.stdin.readline()))
    while os.getppid() == parent and not select.select([sys.stdin], [], [], _EVERY_S)[0]:
        for keeper in keepers:
            keeper.keep()
    # A server that does not answer must not keep this process.
    timer = threading.Timer(_END_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
    for keeper in keepers:
        keeper.close()
    sys.stderr.flush()
    os._exit(0)


def _keepers(orders: dict[str, Any]) -> list[Keeper]:
    layout = RunLayout(Path(orders["run"]))
    attempt, resumed = int(orders["attempt"]), int(orders["resumed"])

    def curve() -> Curve:
        return Curve(layout.metrics, attempt=attempt, resumed=resumed)

    targets = _targets(layout, orders, resumed=resumed)
    return [Keeper(target, curve) for target in targets]


def _targets(layout: RunLayout, orders: dict[str, Any], *, resumed: int) -> list[Target]:
    spec = MetricsSpec.model_validate(orders["metrics"])
    found: list[Target] = []
    if spec.tensorboard:
        found.append(TensorBoard(layout.tensorboard, resumed=resumed))
    if spec.wandb is not None:
        found.append(Wandb(layout.root, spec.wandb, config=orders["config"]))
    return found


if __name__ == "__main__":
    main()
