from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.keys.fields import slurm_time, time_limit_s
from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.profile import load_profile, shipped
from orchestrator.rundir.layout import RunLayout

from .builders import plan, site, spec

GPU = {"model": "H100", "per_node": 4}


def directives(job: dict[str, Any] | None = None, **at: Any) -> dict[str, str]:
    made = plan(spec(**(job or {})), site(**at))
    names = [name for name, _ in made.directives]
    assert len(names) == len(set(names)), "an option stands twice"
    return dict(made.directives)


def complaint(job: dict[str, Any], **at: Any) -> str:
    with pytest.raises(SpecError) as caught:
        plan(spec(**job), site(**at))
    return str(caught.value)


def test_the_directives_of_a_small_job() -> None:
    job_name = plan().job_name
    assert plan().directives == (
        ("job-name", job_name),
        ("nodes", "1"),
        ("ntasks-per-node", "1"),
        ("signal", "USR2@120"),
        ("requeue", ""),
        ("dependency", "singleton"),
        ("open-mode", "append"),
        ("output", "/runs/llama/batch.log"),
    )


def test_all_options_are_spelled_as_sbatch_spells_them() -> None:
    found = directives(
        {
            "nodes": 3,
            "cpus_per_node": 12,
            "mem_gib": 64,
            "partition": "p",
            "account": "a",
            "qos": "q",
            "reservation": "r",
            "constraint": "c",
            "comment": "k",
            "exclude": ["n1", "n[2-3]"],
            "time_limit": "1-12:30:00",
            "notice": {"signal": "USR1", "lead_s": 30},
        },
        gpu=GPU,
    )
    expected = {
        "nodes": "3",
        "ntasks-per-node": "1",
        "cpus-per-task": "12",
        "gpus-per-node": "4",
        "mem": "64G",
        "time": "1-12:30:00",
        "partition": "p",
        "account": "a",
        "qos": "q",
        "reservation": "r",
        "constraint": "c",
        "comment": "k",
        "exclude": "n1,n[2-3]",
        "signal": "USR1@30",
    }
    assert expected.items() <= found.items()


@pytest.mark.parametrize(
    ("request_", "kind", "expected"),
    [
        ("gpus-per-node", None, ("gpus-per-node", "2")),
        ("gpus-per-node-typed", "h100", ("gpus-per-node", "h100:2")),
        ("gres", None, ("gres", "gpu:2")),
        ("gres-typed", "h100", ("gres", "gpu:h100:2")),
        ("gpus", None, ("gpus", "2")),
        ("gpus-typed", "h100", ("gpus", "h100:2")),
        ("none", None, None),
        ("forbidden", None, None),
    ],
)
def test_gpus_are_asked_for_once_and_in_the_sites_way(
    request_: str, kind: str | None, expected: tuple[str, str] | None
) -> None:
    found = directives({"gpus_per_node": 2}, gpu={**GPU, "request": request_, "type": kind})
    asked = [pair for pair in found.items() if "gpu" in pair[0] or pair[0] == "gres"]
    assert asked == ([expected] if expected else [])
    assert not any(name in found for name in ("gpus-per-task", "gpu-bind", "ntasks"))


@pytest.mark.parametrize(
    ("job", "at", "workers"),
    [
        ({}, {}, 1),
        ({}, {"gpu": GPU}, 4),
        ({"gpus_per_node": 2}, {"gpu": GPU}, 2),
        ({"gpus_per_node": 4}, {"gpu": GPU}, 4),
        ({"gpus_per_node": 8}, {}, 8),
    ],
)
def test_one_worker_a_gpu(job: dict[str, Any], at: dict[str, Any], workers: int) -> None:
    made = plan(spec(nodes=3, **job), site(**at))
    assert (made.nproc_per_node, made.world_size) == (workers, 3 * workers)


def test_more_gpus_than_a_node_has() -> None:
    assert "5 are more than a node of here has (4 x H100)" in complaint(
        {"gpus_per_node": 5}, gpu=GPU
    )


PARTITIONS = {
    "short": {"time_limit": "1:00:00", "max_nodes": 2, "constraint": "ib", "comment": "cheap"},
    "long": {},
}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({}, "01:00:00"),
        ({"time_limit": "10"}, "00:10:00"),
        ({"partition": "long"}, None),
        ({"partition": "long", "time_limit": "3-0"}, "3-00:00:00"),
        ({"partition": "one-that-the-profile-does-not-name", "time_limit": "3-0"}, "3-00:00:00"),
    ],
)
def test_the_time_limit_is_the_jobs_or_the_partitions(
    job: dict[str, Any], expected: str | None
) -> None:
    found = directives(job, partitions=PARTITIONS, default_partition="short")
    assert found.get("time") == expected
    assert found["partition"] == job.get("partition", "short")


def test_what_the_partition_asks_for() -> None:
    found = directives(partitions=PARTITIONS, default_partition="short")
    assert (found["constraint"], found["comment"]) == ("ib", "cheap")
    own = directives({"constraint": "x"}, partitions=PARTITIONS, default_partition="short")
    assert (own["constraint"], own["comment"]) == ("x", "cheap")


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"time_limit": "2:00:00"}, "02:00:00 is more than the partition short allows"),
        ({"nodes": 3}, "3 are more than the partition short allows (2)"),
        ({"notice": {"lead_s": 3600}}, "reach beyond the time limit of 3600 s"),
    ],
)
def test_what_the_partition_does_not_allow(job: dict[str, Any], words: str) -> None:
    assert words in complaint(job, partitions=PARTITIONS, default_partition="short")


def test_a_site_that_needs_an_account() -> None:
    assert "add `account: ...`" in complaint({}, account_required=True)
    assert directives({"account": "a"}, account_required=True)["account"] == "a"


def test_no_memory_is_asked_for_by_itself_and_one_with_a_unit() -> None:
    assert not {"mem", "mem-per-cpu", "mem-per-gpu"} & set(directives(gpu=GPU))
    assert directives({"mem_gib": 1})["mem"] == "1G"


def test_cpus_are_the_jobs_or_the_sites() -> None:
    assert directives(cpus_per_node=96)["cpus-per-task"] == "96"
    assert directives({"cpus_per_node": 8}, cpus_per_node=96)["cpus-per-task"] == "8"
    assert plan(spec(cpus_per_node=8), site(cpus_per_node=96)).cpus_per_node == 8


# --- the site local ---------------------------------------------------------------------------


def test_a_local_plan_has_no_directives() -> None:
    made = plan(spec(gpus_per_node=2), site(scheduler="local"))
    assert (made.scheduler, made.directives, made.world_size) == ("local", (), 2)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"nodes": 2}, "nodes: 2 cannot be had on the site local"),
        ({"partition": "p"}, "partition: the site local has no Slurm"),
        ({"account": "a"}, "account: "),
        ({"qos": "a"}, "qos: "),
        ({"reservation": "a"}, "reservation: "),
        ({"constraint": "a"}, "constraint: "),
        ({"comment": "a"}, "comment: "),
        ({"time_limit": "1-0"}, "time_limit: "),
    ],
)
def test_what_one_machine_cannot_do(job: dict[str, Any], words: str) -> None:
    assert words in complaint(job, scheduler="local")


# --- names ------------------------------------------------------------------------------------


def named(root: str) -> LaunchPlan:
    return planning.plan(
        spec(), site(), layout=RunLayout(Path(root)), cwd=Path("/"), python="python"
    )


def test_the_job_name_is_unique_to_the_run_directory() -> None:
    roots = ["/a/llama", "/b/llama", "/a/llama2", "/a/b/llama"]
    names = [named(root).job_name for root in roots]
    assert len(set(names)) == len(roots)
    assert all(name.startswith("llama-") for name in names)
    assert named("/a/llama").job_name == names[0]


def test_a_percent_sign_in_the_log_path_is_escaped() -> None:
    assert dict(named("/100%j/llama").directives)["output"] == "/100%%j/llama/batch.log"


# --- environment, program, round trip ---------------------------------------------------------


def test_the_jobs_environment_wins_over_the_sites_and_that_over_ours() -> None:
    made = plan(
        spec(env={"NCCL_DEBUG": "WARN", "B": "job"}), site(env={"NCCL_DEBUG": "TRACE", "A": "site"})
    )
    env = dict(made.env)
    assert (env["NCCL_DEBUG"], env["A"], env["B"]) == ("WARN", "site", "job")
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert "NET" in env["NCCL_DEBUG_SUBSYS"]


def test_modules_of_the_site_come_first() -> None:
    assert plan(spec(modules=["b"]), site(modules=["a"])).modules == ("a", "b")


def test_the_program() -> None:
    assert plan(spec(script="/t.py", args=["--x", "1"])).program == ("/t.py", "--x", "1")
    train = {
        "model": {"config": {"model_type": "llama"}},
        "data": {"text_files": ["x"], "seq_len": 8},
        "steps": 30,
        "global_batch": 8,
    }
    made = plan(spec(script=None, train=train))
    assert made.program == ("-m", "orchestrator.trainer", "/runs/llama/train.json")
    assert made.steps_total == 30


def test_python_and_workdir_are_the_jobs_or_the_callers() -> None:
    assert (plan().python, plan().workdir) == ("/venv/bin/python", "/home/alice")
    own = plan(spec(python="python3", workdir="/w"))
    assert (own.python, own.workdir) == ("python3", "/w")


@pytest.mark.parametrize("name", shipped())
def test_a_plan_survives_json(name: str) -> None:
    profile = load_profile(name, base=Path("/"))
    account = "lab" if profile.account_required else None
    made = plan(spec(account=account, env={"A": "\u00e9 '\""}, args=["a b"]), profile)
    assert LaunchPlan.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "00:00:01"),
        (90, "00:01:30"),
        (3600, "01:00:00"),
        (86399, "23:59:59"),
        (86400, "1-00:00:00"),
        (8640000, "100-00:00:00"),
    ],
)
def test_time_as_sbatch_reads_it(seconds: int, text: str) -> None:
    assert slurm_time(seconds) == text
    assert time_limit_s(text) == seconds


CLOUDY = {"spot": {"cloud": "aws"}, "owned": {"cloud": "none"}, "other": {}}


@pytest.mark.parametrize(
    ("partition", "cloud"),
    [(None, "gcp"), ("spot", "aws"), ("owned", "none"), ("other", "gcp"), ("unknown", "gcp")],
)
def test_the_cloud_is_that_of_the_partition_or_of_the_site(
    partition: str | None, cloud: str
) -> None:
    made = plan(spec(partition=partition), site(cloud="gcp", partitions=CLOUDY))
    assert made.cloud == cloud
    assert plan(spec()).cloud == "none"


def test_the_monitor_knows_what_the_job_wants_to_know() -> None:
    at = site(partitions=CLOUDY, stop_on_rebalance=True)
    made = plan(spec(partition="spot", notice={"lead_s": 60}), at)
    assert (made.notice_lead_s, made.stop_on_rebalance) == (60, True)


def test_a_plan_of_an_older_version_has_no_cloud() -> None:
    old = plan().to_json()
    for name in ("cloud", "stop_on_rebalance", "notice_lead_s"):
        del old[name]
    assert LaunchPlan.from_json(old) == plan()


@pytest.mark.parametrize(
    ("partition", "notice_s"),
    [
        ({"preempt": "requeue", "grace_s": 30}, 30),
        ({"preempt": "requeue", "grace_s": 0}, 0),
        ({"preempt": "requeue", "grace_s": 600}, 90),
        ({"preempt": "requeue"}, 90),
        ({"preempt": "off", "grace_s": 30}, 90),
    ],
)
def test_how_long_before_the_end_a_notice_comes(partition: dict[str, Any], notice_s: int) -> None:
    at = site(partitions={"spot": partition})
    job = spec(partition="spot", notice={"lead_s": 90})
    assert plan(job, at).notice_s == notice_s


def test_a_plan_of_an_older_version_still_reads() -> None:
    data = plan().to_json()
    del data["notice_s"]
    assert LaunchPlan.from_json(data).notice_s is None
