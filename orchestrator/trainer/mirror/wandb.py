"""A run of Weights & Biases that goes on over all attempts, under one id.

W&B takes a step once, in order, and takes none back. Online, each attempt asks how far the server
is: what it lacks is told from metrics.jsonl, and what it has already is not told again. So where an
attempt was lost, W&B keeps the steps that it heard from that attempt, and goes on with the first
one that it has not heard yet.

Offline there is nobody to ask, and `wandb sync` lets a newer folder of an id replace an older one.
So each attempt writes the whole curve anew, and then removes the folders before it.
"""

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.durable import write_json_once
from orchestrator.spec.train.metrics import WandbSpec
from orchestrator.trainer.mirror.curve import Line, numbers

_INIT_S = 30.0  # a server that does not answer is asked again later
# No process of training is looked at, and nothing of the machine is sent along.
_QUIET = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "disable_job_creation": True,
    "init_timeout": _INIT_S,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}


class Wandb:
    """Tells W&B of the run whose directory is ``root``."""

    name = "Weights & Biases"

    def __init__(self, root: Path, spec: WandbSpec, *, config: dict[str, Any]) -> None:
        self._root, self._spec, self._config = root, spec, config
        self._run: Any = None

    def open(self) -> int:
        """Log in; return the last step that W&B has."""
        import wandb

        self.close()  # where an earlier beginning failed
        folder = self._root / "wandb"
        folder.mkdir(mode=0o700, exist_ok=True)
        known = wandb.Settings.model_fields
        self._run = wandb.init(
            project=self._spec.project,
            entity=self._spec.entity,
            mode=self._spec.mode,
            id=run_id(folder, self._root.name),
            name=self._root.name,
            dir=self._root,
            config=self._config,
            resume=None if self._offline else "allow",
            settings=wandb.Settings(**{k: v for k, v in _QUIET.items() if k in known}),
        )
        return 0 if self._offline else max(int(self._run.step) - 1, 0)

    def write(self, line: Line) -> None:
        """Tell a step, or what came to be known of it later: then it stands at the next one."""
        self._run.log(numbers(line), step=max(line["step"], int(self._run.step)))

    def flush(self) -> None:
        """Offline: remove the folders of earlier attempts, of which this one has all."""
        if not self._offline:
            return
        own = Path(self._run.dir).parent  # the run's files lie one below
        for folder in own.parent.glob(f"offline-run-*-{self._run.id}"):
            if folder.name != own.name:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Log out, once all is sent."""
        if self._run is not None:
            self._run.finish()
        self._run = None

    @property
    def _offline(self) -> bool:
        return self._spec.mode == "offline"


def run_id(folder: Path, name: str) -> str:
    """Return the id of this run; made up once and kept in ``folder``.

    A name alone would go on with a run of the same name that is long gone.

    Raises:
        OSError: It cannot be kept.
    """
    path = folder / "fsdpq-run.json"
    write_json_once(path, {"id": f"{name}-{secrets.token_hex(4)}"})
    return str(json.loads(path.read_text())["id"])
