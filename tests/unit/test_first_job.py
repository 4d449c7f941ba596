"""The first job file is one that `fsdpq submit` takes, on whatever site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.first_job import Answers, job_file, most_nodes, partition_of, run_name
from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.profile import load_profile, shipped
from orchestrator.rundir.layout import RunLayout
from orchestrator.spec.job import load_job
from orchestrator.spec.train import check_batch

from .builders import site

GPU = {"model": "H100", "per_node": 8}


def planned(folder: Path, profile: Any, **changes: Any) -> LaunchPlan:
    """Return the plan of the file, after all checks of a submission."""
    answers = Answers(**{"name": "first", "site": "here", "text": "/src/**/*.py", **changes})
    path = folder / "job.yaml"
    path.write_text(job_file(answers, profile))
    spec = load_job(path)
    plan = planning.plan(
        spec, profile, layout=RunLayout(folder / "run"), cwd=folder, python="python3"
    )
    if spec.train is not None:
        check_batch(spec.train, plan.world_size)
    return plan


@pytest.mark.parametrize("nodes", [1, 2, 7])
@pytest.mark.parametrize("limit", [None, "01:00", "10:00", "7-00:00:00"])
def test_it_fits_its_site(tmp_path: Path, nodes: int, limit: str | None) -> None:
    here = site(gpu=GPU, default_partition="gpu", partitions={"gpu": {"time_limit": limit}})
    plan = planned(tmp_path, here, nodes=nodes, account="lab")
    assert plan.world_size == 8 * nodes
    assert ("account", "lab") in plan.directives
    expected = {None: "01:00:00", "01:00": "00:01:00", "10:00": "00:10:00"}.get(limit, "01:00:00")
    assert ("time", expected) in plan.directives


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_site(tmp_path: Path, name: str) -> None:
    profile = load_profile(name, base=tmp_path)
    local = profile.scheduler == "local"
    most = most_nodes(profile, partition_of(Answers(name="x", site=name), profile))
    nodes = min(2, most or 2)
    assert (
        planned(
            tmp_path,
            profile,
            site=name,
            nodes=nodes,
            account=None if local else "lab",
            workers=2 if local else None,
        ).site
        == name
    )


@pytest.mark.parametrize(
    "text", ["1e5", "a: b", "on", "null", "#x", "- x", "gr\u00fc\u00df", "'", "0123"]
)
def test_hard_words(tmp_path: Path, text: str) -> None:
    script = tmp_path / text
    script.touch()
    here = site(gpu=GPU)
    plan = planned(tmp_path, here, script=text, partition="1e5", account="0123")
    assert plan.program == (str(script),)
    assert {("partition", "1e5"), ("account", "0123")} <= set(plan.directives)


@pytest.mark.parametrize(
    ("partition", "quotas", "most"),
    [
        ({}, [], None),
        ({"nodes": 4}, [], 4),
        ({"nodes": 4, "max_nodes": 2}, [], 2),
        ({"nodes": 9, "max_gpus_per_user": 32}, [], 4),
        ({"nodes": 9}, [{"gpus_per_user": 16}], 2),
    ],
)
def test_how_many_nodes_there_can_be(partition: Any, quotas: Any, most: int | None) -> None:
    here = site(gpu=GPU, default_partition="gpu", partitions={"gpu": partition}, quotas=quotas)
    assert most_nodes(here, here.partitions["gpu"]) == most


@pytest.mark.parametrize("text", ["a" * 200, "...", "\u00fc", "-x-", "a b/c"])
def test_names_of_runs(tmp_path: Path, text: str) -> None:
    assert planned(tmp_path, site(), name=run_name(text)).run == run_name(text)


@pytest.mark.parametrize(("account", "there"), [(None, True), ("lab", False)])
def test_an_account_that_the_site_asks_for(account: str | None, there: bool) -> None:
    here = site(account_required=True, account_form="NAME_gpu")
    text = job_file(Answers(name="x", site="here", text="/src/*.py", account=account), here)
    assert (f"# account: NAME   # {here.name} needs one of the form NAME_gpu" in text) is there
