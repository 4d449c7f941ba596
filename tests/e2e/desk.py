"""Trainings on one rank, in one folder, and what they save."""

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import AutoConfig, AutoModelForCausalLM

from orchestrator.checkpoint.manifest import Manifest, describe_files, list_files, write_manifest
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer import training as parts
from orchestrator.trainer.corpus import open_corpus
from orchestrator.trainer.world import World
from tests.e2e.family_models import FAMILIES

LORA = {"rank": 4, "alpha": 8}


class Desk:
    """Makes trainings over one model in one folder."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world
        self.said: list[str] = []
        (folder / "text").write_bytes(bytes(range(256)) * 8)

    def model(self, name: str = "llama", *, seed: int = 1) -> str:
        torch.manual_seed(seed)
        path = self.folder / f"{name}-{seed}"
        AutoModelForCausalLM.from_config(AutoConfig.for_model(**FAMILIES[name])).save_pretrained(
            path
        )
        return str(path)

    def spec(self, path: str, **changes: Any) -> TrainSpec:
        return TrainSpec.model_validate(
            {
                "model": {"path": path},
                "data": {"text_files": [str(self.folder / "text")], "seq_len": 16},
                "steps": 10,
                "global_batch": 4,
                "micro_batch": 2,
                "lr": 0.01,
                "precision": "fp32",
                **changes,
            }
        )

    def build(self, path: str, *, fresh: bool = True, **changes: Any) -> parts.Training:
        spec = self.spec(path, **changes)
        corpus = open_corpus(spec.data.text_files, seq_len=16)
        return parts.build(spec, self.world, corpus, fresh=fresh, say=self.said.append)

    def save(self, training: parts.Training, name: str = "saved") -> Path:
        folder = self.folder / name
        save({"app": training.state}, checkpoint_id=folder)
        return folder

    def publish(self, training: parts.Training) -> Path:
        """Save the training as a run does; return the folder of its checkpoint."""
        step = training.state.step
        folder = self.save(training, f"run/checkpoints/step-{step}")
        (self.folder / "run" / "train.json").write_text(training.spec.model_dump_json())
        files = describe_files(folder, list_files(folder))
        write_manifest(folder, Manifest(step=step, world_size=1, files=files, at=0.0))
        return folder


def losses(training: parts.Training, steps: int = 3) -> list[float]:
    return [parts.train_step(training).loss for _ in range(steps)]
