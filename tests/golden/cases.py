"""The jobs whose scripts are kept here, rendered so that nothing depends on the machine."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from orchestrator import plan as planning
from orchestrator import script
from orchestrator.errors import SpecError
from orchestrator.fields import read_yaml, validate
from orchestrator.layout import RunLayout
from orchestrator.profile import load_profile
from orchestrator.spec.job import JobSpec
from orchestrator.watch_job import Options, describe

HERE = Path(__file__).parent
JOBS = HERE.parents[1] / "jobs"
TRAIN = {
    "model": {"path": "/models/llama-8b"},
    "data": {"text_files": ["/data/*.txt"], "seq_len": 4096},
    "steps": 5000,
    "global_batch": 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job, as its file would have it, and the site it runs on."""

    site: str
    job: dict[str, Any] = field(default_factory=dict)


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
}


def rendered(name: str) -> dict[str, str]:
    """Return the scripts of a case, by the name of the file that keeps them."""
    case = CASES[name]
    data = {"name": name.partition("-")[0], **case.job, "site": case.site}
    plan = planning.plan(
        validate(JobSpec, data, where=Path(name), error=SpecError),
        load_profile(case.site, base=HERE),
        layout=RunLayout(Path("/shared/runs") / str(data["name"])),
        cwd=Path("/home/alice"),
        python="/home/alice/.venv/bin/python",
    )
    plan = dataclasses.replace(plan, python_path=(f"{plan.run_dir}/fsdpq",))
    with patch.object(script, "__version__", "VERSION"):
        scripts = script.render(plan)
    return {f"{name}.sbatch": scripts["script.sbatch"], f"{name}.node.sh": scripts["node.sh"]}


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
