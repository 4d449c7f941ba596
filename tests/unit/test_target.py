"""Where a job goes: partition, QOS, terms and limits; what a site wants and what it forbids."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.launchplan.target import Target, target

from .builders import plan, site, spec

GPU = {"model": "H100", "per_node": 8}
SITE: dict[str, Any] = {
    "gpu": GPU,
    "cpus_per_node": 96,
    "default_partition": "gpu",
    "constraint": "ib",
    "partitions": {
        "gpu": {"time_limit": "1-0", "preempt": "off", "qos": "normal"},
        "a100": {"gpu": {"model": "A100", "per_node": 4, "request": "gres"}, "cpus_per_node": 64},
        "cheap": {"preempt": "requeue", "grace_s": 30, "constraint": "h100"},
    },
    "qos": {
        "normal": {},
        "long": {"time_limit": "7-0", "max_nodes": 2, "beyond_partition": True},
        "short": {"time_limit": "1:00:00"},
        "scavenge": {"preempt": "cancel", "grace_s": 300, "min_time_limit": "1:00:00"},
    },
}


def goes(job: dict[str, Any], **at: Any) -> Target:
    return target(spec(**job), site(**{**SITE, **at}))


def options(job: dict[str, Any], **at: Any) -> dict[str, str]:
    made: LaunchPlan = plan(spec(**job), site(**{**SITE, **at}))
    return dict(made.directives)


def complaint(job: dict[str, Any], **at: Any) -> str:
    with pytest.raises(SpecError) as caught:
        plan(spec(**job), site(**{**SITE, **at}))
    return str(caught.value)


def test_the_partition_names_its_qos_constraint_and_gpus() -> None:
    default, other = goes({}), goes({"partition": "a100"})
    assert (default.partition, default.qos, default.constraint) == ("gpu", "normal", "ib")
    assert (other.qos, other.constraint) == (None, "ib")
    assert (other.gpu and other.gpu.per_node, other.cpus_per_node) == (4, 64)
    assert options({"partition": "a100", "nodes": 2})["gres"] == "gpu:4"
    assert goes({"partition": "cheap"}).constraint == "h100"
    assert goes({"partition": "cheap"}, default_qos="normal").qos == "normal"


def test_what_a_qos_says_goes_before_the_partition() -> None:
    terms = goes({"qos": "long"}).terms
    assert (terms.time_limit, terms.max_nodes, terms.preempt) == (7 * 86400, 2, "off")
    terms = goes({"partition": "cheap", "qos": "scavenge"}).terms
    assert (terms.preempt, terms.grace_s) == ("cancel", 300)
    assert plan(spec(qos="scavenge"), site(**SITE)).notice_s == 120  # the lead is less


@pytest.mark.parametrize(
    ("qos", "beyond", "limit_s"),
    [
        ("long", True, 7 * 86400),
        ("long", False, 86400),
        ("short", False, 3600),
        ("normal", False, 86400),
    ],
)
def test_the_smaller_limit_holds_unless_the_qos_goes_beyond(
    qos: str, beyond: bool, limit_s: int
) -> None:
    """Slurm's flag PartitionTimeLimit."""
    known = {**SITE["qos"], "long": {"time_limit": "7-0", "beyond_partition": beyond}}
    assert goes({"qos": qos}, qos=known).terms.time_limit == limit_s


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ({"partition": "cheap"}, {"partition": "cheap", "qos": None, "comment": None}),
        ({"qos": "scavenge"}, {"partition": "gpu", "qos": "scavenge", "comment": None}),
        (
            {"comment": "preemption=yes;requeue=true"},
            {"partition": "gpu", "qos": "normal", "comment": "preemption=yes;requeue=true"},
        ),
    ],
)
def test_how_what_is_cheap_is_asked_for(way: dict[str, str], expected: dict[str, Any]) -> None:
    cheap = {**way, "preempt": "requeue", "exempt_s": 600}
    found = goes({"preemptible": True}, preemptible=cheap)
    assert {key: getattr(found, key) for key in expected} == expected
    assert (found.terms.preempt, found.terms.exempt_s) == ("requeue", 600)
    assert goes({}, preemptible=cheap).terms.preempt == "off"


def test_a_quota_of_short_jobs_leaves_long_ones_alone() -> None:
    quota = {"gpus_per_user": 16, "below_time_limit": "12:00:00"}
    assert options({"nodes": 3, "time_limit": "12:00:00"}, quotas=[quota])["nodes"] == "3"
    assert "below 12:00:00 (16)" in complaint(
        {"nodes": 3, "time_limit": "11:59:59"}, quotas=[quota]
    )


def test_what_is_cheap_cannot_be_had() -> None:
    assert "does not say how" in complaint({"preemptible": True})
    both = complaint({"preemptible": True, "partition": "gpu"}, preemptible={"partition": "cheap"})
    assert "`partition: gpu` says otherwise" in both


@pytest.mark.parametrize(
    ("job", "at", "words"),
    [
        ({"qos": "long", "nodes": 3}, {}, "partition gpu with the QOS long allows (2)"),
        ({"qos": "scavenge", "time_limit": "30"}, {}, "00:30:00 is less than"),
        ({"time_limit": "2-0"}, {}, "2-00:00:00 is more than the partition gpu"),
        ({"nodes": 3}, {"quotas": [{"gpus_per_user": 16}]}, "24 GPUs, which is more than"),
        (
            {"nodes": 3, "time_limit": "12:00:00"},
            {"quotas": [{"gpus_per_user": 16, "below_time_limit": "13:00:00", "note": "all"}]},
            "gives a user for time limits below 13:00:00 (16); the job would wait for ever: ask for"
            " fewer (the profile's note: all)",
        ),
        ({"nodes": 3}, {"quotas": [{"gpus_per_account": 16}]}, "gives an account (16)"),
        ({}, {"account_required": True, "account_form": "a_<lab>"}, "of the form a_<lab>"),
        ({"sbatch": {"hint": "x"}}, {"forbidden": {"hint": "no"}}, "sbatch.hint: here forbids"),
        ({"partition": "gpu"}, {"forbidden": {"partition": "by GPU"}}, "partition: here forbids"),
        (
            {"sbatch": {"hint": "x"}, "mem_gib": 3},
            {"forbidden": {"hint": "no", "mem": "whole nodes"}},
            "sbatch.hint: here forbids it: no; remove it\nmem_gib: here forbids --mem",
        ),
        ({"preemptible": True}, {"terms": {"preempt": "off"}}, "preemption is off at here"),
        ({"mem_gib": 3}, {"forbidden": {"mem": "whole nodes"}}, "--mem: whole nodes; remove it"),
    ],
)
def test_what_cannot_be_had(job: dict[str, Any], at: dict[str, Any], words: str) -> None:
    where = {**SITE, "partitions": {**SITE["partitions"], "gpu": {"time_limit": "1-0"}}, **at}
    assert words in complaint(job, **where)


def test_a_quota_of_other_partitions_does_not_count() -> None:
    quota = [{"gpus_per_user": 8, "partitions": ["a100"]}]
    assert options({"nodes": 4}, quotas=quota)["nodes"] == "4"


def test_options_of_the_site_and_of_the_job() -> None:
    at = {"options": {"exclusive": True, "hint": "nomultithread"}, "memory": "all"}
    found = options({"sbatch": {"hint": "multithread", "mail-type": "END"}}, **at)
    assert (found["exclusive"], found["mem"]) == ("", "0")
    assert (found["hint"], found["mail-type"]) == ("multithread", "END")
    assert options({"mem_gib": 7}, **at)["mem"] == "7G"


def test_memory_that_goes_with_the_gpus() -> None:
    assert options({}, memory_gib_per_gpu=100)["mem"] == "800G"
    assert options({"gpus_per_node": 3}, memory_gib_per_gpu=100)["mem"] == "300G"
    assert options({"mem_gib": 7}, memory_gib_per_gpu=100)["mem"] == "7G"


def test_terms_of_the_whole_site_come_last() -> None:
    terms = {"preempt": "cancel", "min_time_limit": "1:00:00", "max_nodes": 3}
    assert goes({}, terms=terms).terms.preempt == "off"  # the partition says so
    assert goes({}, terms=terms).terms.max_nodes == 3
    assert goes({"qos": "long"}, terms=terms).terms.max_nodes == 2
    assert "00:30:00 is less than" in complaint({"time_limit": "30"}, terms=terms)


def test_what_a_site_forbids_is_left_out() -> None:
    found = options({}, forbidden={"partition": "by GPU", "cpus-per-task": "whole nodes"})
    assert not {"partition", "cpus-per-task"} & found.keys()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dependency": "none"}, "cannot be changed"),
        ({"time": "3"}, "use the key `time_limit`"),
        ({"Mail": "x"}, "no long option"),
        ({"mail-user": "a$b"}, "expands no variables"),
    ],
)
def test_options_that_are_not_the_jobs(given: dict[str, str], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        spec(sbatch=given)


def test_gpus_in_total_follow_the_number_of_nodes() -> None:
    at = {"gpu": {**GPU, "request": "gpus-typed", "type": "h100"}}
    made = plan(spec(nodes=4), site(**{**SITE, **at}))
    assert dict(made.directives)["gpus"] == "h100:32"
    assert made.size_options(3) == ["--nodes=3", "--gpus=h100:24"]
    assert plan(spec(nodes=4), site(**SITE)).size_options(3) == ["--nodes=3"]


def test_all_options_that_cannot_be_set_are_named() -> None:
    with pytest.raises(SpecError) as caught:
        spec(sbatch={"wrap": "x", "time": "5", "hint": "x"})
    assert "wrap is how fsdpq keeps hold of the run" in str(caught.value)
    assert "time is set by fsdpq; use the key `time_limit`" in str(caught.value)


def test_a_qos_that_the_partition_does_not_take() -> None:
    only = {"partitions": {"gpu": {"allow_qos": ["normal", "long"], "deny_qos": ["normal"]}}}
    assert goes({"qos": "normal"}, **only).qos == "normal"
    said = complaint({"qos": "short"}, **only)
    assert "qos: short is not taken by the partition gpu; use one of normal, long" in said
    denied = {"partitions": {"gpu": {"deny_qos": ["short"]}}}
    assert "use another" in complaint({"qos": "short"}, **denied)
    assert options({"qos": "long"}, **denied)["qos"] == "long"
