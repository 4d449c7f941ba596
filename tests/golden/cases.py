"""The jobs whose scripts are kept here, rendered so that nothing depends on the machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from orchestrator.errors import SpecError
from orchestrator.keys.fields import read_yaml, validate
from orchestrator.launchplan import plan as planning
from orchestrator.launchplan import script
from orchestrator.profile import ContainerProfile, GpuProfile, SiteProfile, load_profile, shipped
from orchestrator.rundir.layout import RunLayout
from orchestrator.spec.job import JobSpec
from orchestrator.watching.watch_job import Options, describe

HERE = Path(__file__).parent
JOBS = HERE.parents[1] / "jobs"
TRAIN = {
    "model": {"path": "/models/llama-8b"},
    "data": {"text_files": ["/data/*.txt"], "seq_len": 4096},
    "steps": 5000,
    "global_batch": 64,
}
SMALL = {"nodes": 2, "account": "lab", "time_limit": "12:00:00"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job, as its file would have it, and the site it runs on.

    Attributes:
        whole: Whether node.sh is kept too; it hardly differs from site to site.
        container: What the profile says of containers, in place of the shipped one's words.
    """

    site: str
    job: dict[str, Any] = field(default_factory=dict)
    whole: bool = True
    container: dict[str, Any] | None = None


CASES = {
    "quickstart-local": Case(
        site="local", job=read_yaml(JOBS / "quickstart.yaml", error=SpecError)
    ),
    # The reference trainer, with what the site's profile gives.
    "llama-kempner-h100": Case(
        site="kempner-h100",
        job={"nodes": 4, "account": "lab", "time_limit": "1-12:00:00", "train": TRAIN},
    ),
    # A script of one's own on the preemptible partition, with everything that can be asked for.
    "own-kempner-a100": Case(
        site="kempner-a100",
        job={
            "nodes": 2,
            "gpus_per_node": 2,
            "cpus_per_node": 32,
            "mem_gib": 200,
            "partition": "kempner_requeue",
            "account": "lab",
            "qos": "normal",
            "reservation": "tuesday",
            "comment": "fine tuning, second try",
            "require_rdma": True,
            "exclude": ["holygpu8a1[1301-1302]", "holygpu8a11401"],
            "time_limit": "12:00:00",
            "workdir": "/n/lab/alice's project",
            "python": "/n/lab/venv/bin/python",
            "modules": ["cuda/12.9"],
            "env": {"NCCL_DEBUG": "WARN", "PROMPT": "it's $5; `really`"},
            "notice": {"signal": "USR1", "lead_s": 300},
            "restart": {"max_no_progress": 5},
            "script": "/n/lab/alice's project/train.py",
            "args": ["--name", "a b", "--lr=1e-4"],
        },
    ),
    # The first of them shows node.sh in a container as well.
    "container-pyxis": Case(
        site="kempner-h100",
        job={**SMALL, "train": TRAIN, "container": "/images/torch.sqsh"},
        container={
            "runtime": "pyxis",
            "mounts": ["/var/tmp", "/run/tcpx-${SLURM_JOB_ID}"],
            "pass_env": ["OMPI_*"],
            "options": ["--no-container-mount-home"],
            "env": {"NCCL_PLUGIN": "/run/tcpx-${SLURM_JOB_ID}/lib"},
        },
    ),
    "container-apptainer": Case(
        whole=False,
        site="kempner-a100",
        job={
            **SMALL,
            "script": "/n/lab/train.py",
            "env": {"PROMPT": "it's $5; `really`"},
            "container": {
                "image": "/images/torch.sif",
                "mounts": ["/n/data:/data:ro"],
                "options": ["--writable-tmpfs"],
            },
        },
        container={"runtime": "apptainer"},
    ),
    "container-shifter": Case(
        whole=False,
        site="kempner-a100",
        job={
            **SMALL,
            "script": "/n/lab/train.py",
            "container": {"image": "docker:nersc/pytorch:24.06", "mounts": ["/n/data:/data"]},
        },
        container={"runtime": "shifter", "options": ["--module=gpu,nccl-2.18"]},
    ),
    "container-podman-hpc": Case(
        whole=False,
        site="kempner-a100",
        job={**SMALL, "script": "/n/lab/train.py", "container": "docker.io/pytorch/pytorch:2.11"},
        container={"runtime": "podman-hpc", "options": ["--nccl"]},
    ),
    "container-edf": Case(
        whole=False,
        site="kempner-h100",
        job={**SMALL, "script": "/n/lab/train.py", "container": "pytorch"},
        container={"runtime": "edf", "options": ["com.hooks.aws_ofi_nccl.enabled=true"]},
    ),
}

# Sites that give a job one node.
SINGLE = frozenset({"mila-h100"})


def site_job(profile: SiteProfile, **more: Any) -> dict[str, Any]:
    """Return a job for the reference trainer on a site: two nodes, and nothing that can be left."""
    account = {"account": "lab"} if profile.account_form else {}
    return {"nodes": 1 if profile.name in SINGLE else 2, "train": TRAIN, **account, **more}


def site_profile(name: str) -> SiteProfile:
    """Return a shipped profile; a generic one with the GPUs that its user would add."""
    profile = load_profile(name, base=HERE)
    if profile.gpu is not None:
        return profile
    gpu = GpuProfile(model="H100-80GB", per_node=8)
    return profile.model_copy(update={"gpu": gpu})


SLURM_SITES = [name for name in shipped() if name != "local"]
CASES |= {
    f"site-{name}": Case(site=name, job=site_job(site_profile(name)), whole=False)
    for name in SLURM_SITES
}


def rendered(name: str) -> dict[str, str]:
    """Return the scripts of a case, by the name of the file that keeps them."""
    case = CASES[name]
    scripts = {
        f"{name}.{suffix}": text for suffix, text in render(name.partition("-")[0], case).items()
    }
    return scripts if case.whole else {f"{name}.sbatch": scripts[f"{name}.sbatch"]}


def case_profile(case: Case) -> SiteProfile:
    """Return the profile of a case's site, with what the case says of containers."""
    if case.site not in SLURM_SITES:
        return load_profile("local", base=HERE)
    profile = site_profile(case.site)
    if case.container is None:
        return profile
    container = ContainerProfile.model_validate(case.container)
    return profile.model_copy(update={"container": container})


def render(run: str, case: Case) -> dict[str, str]:
    """Return the scripts of a case: `sbatch` and `node.sh`."""
    data = {"name": run, **case.job, "site": case.site}
    plan = planning.plan(
        validate(JobSpec, data, where=Path(run), error=SpecError),
        case_profile(case),
        layout=RunLayout(Path("/shared/runs") / str(data["name"])),
        cwd=Path("/home/alice"),
        python="/home/alice/.venv/bin/python",
    )
    plan = dataclasses.replace(plan, python_path=(f"{plan.run_dir}/fsdpq",))
    with patch.object(script, "__version__", "VERSION"):
        scripts = script.render(plan)
    return {"sbatch": scripts["script.sbatch"], "node.sh": scripts["node.sh"]}


WATCH = "watch-job"


def rendered_watch() -> dict[str, str]:
    """Return the script of `fsdpq watch --as-job`, by the name of the file that keeps it."""
    job = describe(
        Path("/shared/alice's runs"),
        ["llama-1b", "llama-8b"],
        options=Options(account="lab", partition="cpu"),
        python="/home/alice/.venv/bin/python",
    )
    with patch.object(script, "__version__", "VERSION"):
        return {f"{WATCH}.sbatch": job.text}


def all_rendered() -> dict[str, str]:
    """Return every script that is kept here."""
    scripts = rendered_watch()
    for name in CASES:
        scripts |= rendered(name)
    return scripts
