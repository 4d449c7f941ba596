"""From a job file to a forecast, and to Slurm's word on whether it would take the job. Effects."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ActionError, SpecError
from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.target import target
from orchestrator.planner import Forecast, forecast
from orchestrator.planner.families import UnknownShapeError
from orchestrator.planner.gpus import NAMES, Gpu, find
from orchestrator.planner.layouts import Place
from orchestrator.profile import SiteProfile
from orchestrator.slurm import client, parse
from orchestrator.spec.job import JobSpec
from orchestrator.spec.train import TrainSpec, check_batch
from orchestrator.submitting import launch, remarks
from orchestrator.submitting.described import Described, read
from orchestrator.weightfiles.texts import read_object


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known of a job before it runs.

    Attributes:
        forecast: None for a script of the user's own or a model of a family that is not known.
        accepted: Whether Slurm would take it; None where there is no Slurm to ask.
        slurm: What Slurm said, by lines.
        unknown: What cannot be said, each a sentence.
        notes: What looks like a mistake in the job, as its submission would say.
    """

    forecast: Forecast | None
    accepted: bool | None
    slurm: str
    unknown: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def hopeless(self) -> bool:
        """Whether it is known that the job, as it is asked for, cannot run."""
        return self.accepted is False or (
            self.forecast is not None and self.forecast.asked.fits is False
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's types."""
        known = self.forecast.to_json() if self.forecast else _NOTHING
        slurm = {"accepted": self.accepted, "said": " ".join(self.slurm.split())}
        return {**known, "slurm": slurm, "unknown": list(self.unknown), "notes": list(self.notes)}


_NOTHING: dict[str, Any] = {
    "fits": None,
    "nodes_min": None,
    "per_gpu_bytes": {},
    "peak_bytes": None,
    "checkpoint_bytes": None,
    "step_s": None,
    "tokens_per_s_per_gpu": None,
}


def outlook(
    job: Path,
    *,
    runs: Path,
    site: str | None,
    overrides: Sequence[str],
    nodes: int | None,
    gpu: str | None,
) -> Outlook:
    """Return what is known of the job in the file ``job`` before it runs.

    Args:
        job: The job file.
        runs: Where the run directories are.
        site: The site instead of the job's; None leaves it.
        overrides: Such as ``train.micro_batch=2``.
        nodes: How many, instead of the job's; None leaves it.
        gpu: The kind of GPU instead of the site's; None leaves it.

    Raises:
        InputError: The job, its site or the configuration of its model cannot be used.
    """
    more = [f"nodes={nodes}"] if nodes is not None else []
    described = read(job, site=site, overrides=[*overrides, *more])
    kind = None if gpu is None else _gpu(gpu)
    profile = described.profile
    try:
        spec = planning.settle(described.spec, profile)
        seen, unknown = _forecast(spec, profile, kind)
    except SpecError as problem:
        raise SpecError(f"{job}: {problem}") from None
    accepted, said = _would_be_taken(described, runs)
    return Outlook(
        forecast=seen,
        accepted=accepted,
        slurm=said,
        unknown=tuple(unknown),
        notes=tuple(remarks.of_request(spec, profile)),
    )


def _forecast(
    spec: JobSpec, profile: SiteProfile, gpu: Gpu | None
) -> tuple[Forecast | None, list[str]]:
    if spec.train is None:
        return None, [_OF_SCRIPTS]
    where = target(spec, profile)
    there = where.gpu
    per_node = spec.gpus_per_node or (there.per_node if there else 1)
    check_batch(spec.train, spec.nodes * per_node)
    gpu = gpu or (find(there.model, there.memory_gib) if there else None)
    unknown = [] if gpu else [_no_gpu(profile.name, there.model if there else None)]
    # As templates/node.sh.j2 sets OMP_NUM_THREADS.
    threads = max(where.cpus_per_node // per_node, 1) if where.cpus_per_node else 1
    place = Place(
        gpu=gpu,
        per_node=per_node,
        fabric=profile.fabric,
        threads=threads,
        has_gpus=gpu is not None or there is not None,
    )
    try:
        return forecast(spec.train, _config(spec.train), place, nodes=spec.nodes), unknown
    except UnknownShapeError as problem:
        return None, [str(problem), *unknown]


_OF_SCRIPTS = (
    "memory, speed and checkpoints of a `script:` job: fsdpq does not know what it trains. Run some"
    " steps on one node and look at torch.cuda.max_memory_reserved(); parameters, gradients and"
    " AdamW in fp32 take 16 bytes a parameter, spread over the shards"
)


def _gpu(name: str) -> Gpu:
    found = find(name)
    if found is None:
        raise SpecError(f"--gpu: {name} is not known; use one of {', '.join(NAMES)}")
    return found


def _no_gpu(site: str, model: str | None) -> str:
    which = f"calls its GPUs {model}, which is not known here" if model else "names no GPU"
    return f"whether it fits: the site {site} {which}; give --gpu, one of {', '.join(NAMES)}"


def _config(train: TrainSpec) -> Mapping[str, Any]:
    """Return the Hugging Face configuration of the model.

    Raises:
        SpecError: Its file cannot be read.
    """
    if train.model.path is None:
        return train.model.config or {}
    try:
        return read_object(Path(train.model.path) / "config.json")
    except SpecError as problem:
        raise SpecError(f"train.model.path: {problem}") from None


def _would_be_taken(described: Described, runs: Path) -> tuple[bool | None, str]:
    """Return whether Slurm would take the job, and its words. Nothing is submitted."""
    if described.profile.scheduler != "slurm":
        return None, ""
    try:
        prepared = launch.ready(described, runs=runs)
    except SpecError as problem:  # known from the site profile, without asking
        return False, str(problem)
    if shutil.which("sbatch") is None:
        return None, "there is no sbatch here; ask again on a login node"
    with tempfile.TemporaryDirectory(prefix="fsdpq-plan-") as folder:
        script = Path(folder) / "script.sbatch"
        script.write_text(prepared.files["script.sbatch"], encoding="utf-8")
        try:
            return True, client.test_only(str(script))
        except ActionError as error:
            said = "\n".join(" ".join(line.split()) for line in error.stderr.splitlines() if line)
            return (False if parse.refused(error.stderr) else None), said
