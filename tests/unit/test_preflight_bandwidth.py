"""The bandwidth check of the pre-flight: what its ranks are told, and when a node is unfit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bandwidth import Record
from orchestrator.launchplan import fitness
from orchestrator.preflight import bandwidth, ranks
from orchestrator.preflight.children import Output
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Problem
from orchestrator.spec.preflight import CERTAIN, PreflightSpec

from .builders import site, spec
from .test_bandwidth import all_pairs, record

ENVIRONMENT = {
    "FSDPQ_HEAD": "n1",
    "FSDPQ_PORT": "20000",
    "SLURM_NODEID": "2",
    "SLURM_JOB_NUM_NODES": "3",
}


def expected(**changes: Any) -> Expected:
    return Expected(checks=("bandwidth",), workers=2, **changes)


def test_it_is_on_where_it_is_asked_for_alone() -> None:
    assert "bandwidth" not in CERTAIN.checks
    assert "bandwidth" not in PreflightSpec.model_validate(True).checks
    assert "bandwidth" in PreflightSpec.model_validate({"bandwidth": True}).checks


@pytest.mark.parametrize(("nodes", "promised"), [(2, 380.0), (1, None)])
def test_what_a_site_promises_holds_between_nodes(nodes: int, promised: float | None) -> None:
    fast = site(fabric={"kind": "infiniband", "busbw_gbs": 380})
    job = spec(nodes=nodes, preflight={"bandwidth": True, "bandwidth_ratio": 0.5})
    found = fitness.expected(job, fast, workers=8)
    assert (found.busbw_gbs, found.bandwidth_ratio) == (promised, 0.5)


def test_each_rank_has_its_place() -> None:
    places = bandwidth.places(expected(), ENVIRONMENT)
    assert [(place["RANK"], place["LOCAL_RANK"]) for place in places] == [("4", "0"), ("5", "1")]
    for place in places:
        assert (place["WORLD_SIZE"], place["LOCAL_WORLD_SIZE"]) == ("6", "2")
        # Neither torchrun's port nor the next one.
        assert (place["MASTER_ADDR"], place["MASTER_PORT"]) == ("n1", "20002")


def test_without_slurm_there_is_one_node() -> None:
    [first, second] = bandwidth.places(expected(), {"FSDPQ_HEAD": "h", "FSDPQ_PORT": "20000"})
    assert (first["RANK"], second["RANK"], first["WORLD_SIZE"]) == ("0", "1", "2")


def test_its_ranks_leave_no_log_where_those_of_the_training_are_read() -> None:
    inherited = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/run/nccl/%h", "NCCL_IB_HCA": "=mlx5_0"}
    found = ranks.environment(inherited)
    assert "NCCL_DEBUG_FILE" not in found
    assert (found["NCCL_DEBUG"], found["NCCL_IB_HCA"]) == ("WARN", "=mlx5_0")


def test_the_check_waits_as_long_as_other_nodes_may_take() -> None:
    alone = bandwidth.limit_s(expected(timeout_s=60, bandwidth_timeout_s=100))
    both = Expected(checks=("all_reduce", "bandwidth"), timeout_s=60, bandwidth_timeout_s=100)
    assert alone > 60 + 100
    assert bandwidth.limit_s(both) == alone + both.all_reduce_timeout_s


def test_a_slow_node_is_unfit_and_no_other() -> None:
    sweep = all_pairs(4, slow={"n2": 200.0})
    found = bandwidth.judge(sweep, host="n2", before=None)
    [problem] = found.problems
    assert isinstance(problem, Problem)
    assert (problem.check, problem.kind) == ("bandwidth", "node")
    assert "reaches 200 GB/s at most" in problem.what
    for host in ("n1", "n3", "n4"):
        assert bandwidth.judge(sweep, host=host, before=None).problems == ()


def test_a_node_that_was_named_before_and_came_again_stays() -> None:
    sweep = all_pairs(4, slow={"n2": 200.0})
    found = bandwidth.judge(sweep, host="n2", before=sweep)
    assert found.problems == ()
    assert "slow again" in found.notes[0]
    others = all_pairs(4, slow={"n3": 200.0})
    assert bandwidth.judge(sweep, host="n2", before=others).problems


def test_what_is_slow_altogether_stops_nobody_and_is_said_once() -> None:
    sweep = record({("n1", "n2"): 3.0, ("n1", "n3"): 3.0, ("n2", "n3"): 3.0}, expected_gbs=4000.0)
    found = [bandwidth.judge(sweep, host=host, before=None) for host in sweep.nodes]
    assert [f.problems for f in found] == [(), (), ()]
    assert [len(f.notes) for f in found] == [1, 0, 0]


def test_a_slow_pair_is_a_note() -> None:
    pairs = {("n1", "n2"): 400.0, ("n1", "n3"): 400.0, ("n2", "n3"): 40.0}
    found = bandwidth.judge(record(pairs), host="n1", before=None)
    assert found.problems == ()
    assert found.notes == ("bandwidth: n2 and n3 reach 40 GB/s, usual are 400 GB/s",)


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The second attempt of a run; its ranks are not started."""
    for number in (1, 2):
        (tmp_path / "attempts" / str(number)).mkdir(parents=True)
    monkeypatch.setattr(bandwidth, "_run", lambda *_: [])
    return tmp_path / "attempts" / "2"


def check(attempt: Path, host: str = "n2") -> Any:
    environment = {**ENVIRONMENT, "FSDPQ_ATTEMPT_DIR": str(attempt)}
    temporary = str(attempt.parents[1])
    return bandwidth.check_bandwidth(
        expected(), host=host, temporary=temporary, environment=environment
    )


def leave(monkeypatch: pytest.MonkeyPatch, sweep: Record) -> None:
    """Let the ranks measure ``sweep``."""

    def run(expected: Expected, folder: Path, environment: Any) -> list[Output]:
        (folder / "record.json").write_text(json.dumps(sweep.to_json()))
        return [Output(0, "")]

    monkeypatch.setattr(bandwidth, "_run", run)


def test_the_last_attempt_is_looked_at(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = all_pairs(3, slow={"n2": 2.0})
    leave(monkeypatch, sweep)
    assert check(attempt).problems
    before = attempt.parent / "1" / "bandwidth.json"
    before.write_text("{")
    assert check(attempt).problems
    before.write_text(json.dumps(sweep.to_json()))
    assert check(attempt).problems == ()


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([Output(None, ""), Output(None, "")], "it was not over in time"),
        ([Output(0, "fine"), Output(1, "a\nRuntimeError: no route\n")], "RuntimeError: no route"),
        ([Output(-9, "")], "it was not over in time"),
    ],
)
def test_a_sweep_that_breaks_is_a_note(
    attempt: Path, monkeypatch: pytest.MonkeyPatch, outputs: list[Output], words: str
) -> None:
    monkeypatch.setattr(bandwidth, "_run", lambda *_: outputs)
    found = check(attempt)
    assert found.problems == ()
    assert found.notes == (f"bandwidth: not measured: {words}",)
    assert [path.name for path in attempt.parents[1].iterdir()] == ["attempts"]


def test_one_rank_alone_is_not_measured(attempt: Path) -> None:
    alone = {"FSDPQ_HEAD": "h", "FSDPQ_PORT": "20000", "FSDPQ_ATTEMPT_DIR": str(attempt)}
    found = bandwidth.check_bandwidth(
        Expected(checks=("bandwidth",)), host="h", temporary=str(attempt), environment=alone
    )
    assert found.notes == ("bandwidth: not measured: one rank alone has nobody to talk to",)


def test_a_node_without_a_folder_of_its_own_goes_on(attempt: Path) -> None:
    found = bandwidth.check_bandwidth(
        expected(), host="n1", temporary=str(attempt / "gone"), environment=ENVIRONMENT
    )
    assert found.problems == ()
    assert "not measured" in found.notes[0]
