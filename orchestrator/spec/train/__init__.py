"""The `train:` part of a job file."""

from orchestrator.spec.train.batch import check_batch, fits, mesh_shape
from orchestrator.spec.train.checkpoint import CheckpointSpec, check_local_copy
from orchestrator.spec.train.data import DataSpec, EvalSpec, SourceSpec, SourcesSpec
from orchestrator.spec.train.mesh import MeshSpec
from orchestrator.spec.train.metrics import MetricsSpec, WandbSpec
from orchestrator.spec.train.model import ModelSpec
from orchestrator.spec.train.parallel import rows_at_once
from orchestrator.spec.train.schema import TrainSpec, load_train, with_overrides
from orchestrator.spec.train.timeouts import TimeoutSpec
from orchestrator.spec.train.tuning import LoraSpec

__all__ = [
    "CheckpointSpec",
    "DataSpec",
    "EvalSpec",
    "LoraSpec",
    "MeshSpec",
    "MetricsSpec",
    "ModelSpec",
    "SourceSpec",
    "SourcesSpec",
    "TimeoutSpec",
    "TrainSpec",
    "WandbSpec",
    "check_batch",
    "check_local_copy",
    "fits",
    "load_train",
    "mesh_shape",
    "rows_at_once",
    "with_overrides",
]
