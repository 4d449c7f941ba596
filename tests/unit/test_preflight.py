"""What a node is asked before a job starts, and what a small all-reduce says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.keys.fields import validate
from orchestrator.launchplan import fitness
from orchestrator.preflight import reports
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Findings, one_line
from orchestrator.preflight.reports import Report
from orchestrator.profile import SiteProfile
from orchestrator.spec.job import JobSpec
from orchestrator.spec.preflight import CERTAIN, CHECKS

from .builders import plan, site, spec
from .gpu_health import FABRIC, expected, whats

# --- what is asked of a node ------------------------------------------------------------------

H100 = {"model": "H100-80GB-SXM", "per_node": 4}


def asked(job: dict[str, Any], **profile: Any) -> Expected:
    at: SiteProfile = site(**{"gpu": H100, **profile})
    return fitness.expected(spec(**job), at, workers=4)


def test_without_a_word_only_what_is_certain_is_checked() -> None:
    assert asked({}).checks == CERTAIN.checks == ("gpus", "storage")
    assert asked({"preflight": True}).checks == CHECKS[:-2]
    assert asked({"preflight": {"all_reduce": True, "hcas": False}}).checks == (
        *("gpus", "memory", "ecc", "clocks", "nvlink", "storage", "all_reduce"),
    )
    assert asked({"preflight": False}).checks == ()
    assert plan(spec()).preflight
    assert not plan(spec(preflight=False)).preflight


@pytest.mark.parametrize("value", ["yes", 3, {"gpu": True}, {"timeout_s": 0}])
def test_what_is_no_check_is_refused(value: Any) -> None:
    data = {"name": "a", "site": "b", "script": "/c", "preflight": value}
    with pytest.raises(SpecError, match="preflight"):
        validate(JobSpec, data, where=Path("job.yaml"), error=SpecError)


def test_expectations_come_from_job_and_profile() -> None:
    infiniband = {"kind": "infiniband", "rate": "NDR400", "hcas_per_node": 8}
    of_two = asked({"nodes": 2}, fabric=infiniband)
    assert (of_two.gpus, of_two.gpu_model, of_two.workers) == (4, "H100-80GB-SXM", 4)
    assert (of_two.fabric, of_two.hcas, of_two.hca_gbps) == ("infiniband", 8, 400)
    alone = asked({"nodes": 1}, fabric=infiniband)
    assert (alone.fabric, alone.hcas) == ("none", None)
    assert asked({"nodes": 2}, gpu=None).gpus is None
    assert asked({}, gpu={"model": "A100", "per_node": 4, "type": "a100_3g.20gb"}).mig


@pytest.mark.parametrize("rate", ["3200Gb/s", "fast", None])
def test_a_rate_that_may_be_that_of_the_whole_node_is_none(rate: str | None) -> None:
    profile = {"kind": "infiniband", "rate": rate, "hcas_per_node": 8}
    assert asked({"nodes": 2}, fabric=profile).hca_gbps is None


def test_expectations_survive_json_and_other_versions() -> None:
    made = expected(**FABRIC)
    data = json.loads(json.dumps(made.to_json()))
    assert Expected.from_json({**data, "of a later version": 1}) == made
    with pytest.raises(KeyError):
        Expected.from_json({})


# --- the small all-reduce ---------------------------------------------------------------------


def ranks(*changes: dict[str, Any]) -> list[Report]:
    usual = {"stage": "done", "sum_ok": True, "work_s": 0.03}
    return [
        Report.from_json(rank, {**usual, "device": f"cuda:{rank}", **change})
        for rank, change in enumerate(changes)
    ]


def reduced(*changes: dict[str, Any]) -> Findings:
    return reports.judge(ranks(*changes), waited_s=120.0)


def test_an_all_reduce_that_works() -> None:
    assert reduced({}, {"work_s": 0.04}, {}) == Findings()


def test_the_rank_that_raised_first_is_named_and_those_that_followed_are_not() -> None:
    found = reduced(
        {"stage": "group", "error": "DistBackendError: connection closed"},
        {"stage": "started", "error": "AcceleratorError: CUDA error: uncorrectable ECC error"},
    )
    assert whats(found) == ["GPU 1 failed: AcceleratorError: CUDA error: uncorrectable ECC error"]


def test_the_rank_that_hangs_is_named() -> None:
    found = reduced({"stage": "device"}, {"stage": "started"}, {"stage": "device"})
    assert whats(found) == ["GPU 1 still waited for its GPU after 120 s"]
    assert "GPU 0, GPU 1" in whats(reduced({"stage": "group"}, {"stage": "group"}))[0]


def test_a_wrong_sum_and_a_slow_gpu_are_named() -> None:
    assert "GPU 1 has a wrong sum" in whats(reduced({}, {"sum_ok": False}))[0]
    assert "GPU 2 took 90 ms" in whats(reduced({}, {}, {"work_s": 0.09}))[0]
    cpu = {"device": "cpu"}
    assert reduced(cpu, cpu, {**cpu, "work_s": 0.09}) == Findings()


def test_a_python_without_torch_is_a_note() -> None:
    lack = {"stage": "", "error": "ModuleNotFoundError: No module named 'torch'"}
    found = reduced(lack, lack)
    assert found.problems == ()
    assert "not run: ModuleNotFoundError" in found.notes[0]


def test_what_was_found_is_json() -> None:
    found = reduced({}, {"sum_ok": False})
    assert found.to_json(node="n2", at=5.0) == {
        "node": "n2",
        "ok": False,
        "at": 5.0,
        "problems": [
            {
                "check": "all_reduce",
                "kind": "node",
                "what": "GPU 1 has a wrong sum after the all-reduce",
            }
        ],
        "notes": [],
    }
    assert one_line("a\x1b[31m\n" + "b" * 400)[-4:] == "b..."
