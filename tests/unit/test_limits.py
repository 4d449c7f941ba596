"""How long a rank may make no progress."""

from __future__ import annotations

import pytest

from orchestrator.errors import SpecError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.limits import Limits

from .builders import plan, spec

LIMITS = Limits(min_s=300, factor=5, start_s=1200, save_s=900, max_s=3600)


@pytest.mark.parametrize(
    ("times", "limit"),
    [
        ([], 1200),  # it compiles
        ([2.0, 700.0], 1200),  # and may do so again at the second step
        ([2.0, 2.0, 2.0], 300),
        ([2.0, 2.0, 900.0], 300),  # one slow step makes no difference
        ([90.0, 80.0, 100.0], 450),
        ([900.0] * 9, 3600),
    ],
)
def test_limit_of_a_step(times: list[float], limit: float) -> None:
    assert LIMITS.of_step(times) == limit


@pytest.mark.parametrize(("longest", "limit"), [(0, 900), (100, 900), (400, 2000), (4000, 3600)])
def test_limit_of_a_save(longest: float, limit: float) -> None:
    assert LIMITS.of_save(longest) == limit


def test_what_the_user_allows_is_not_cut_by_max_s() -> None:
    wide = Limits(start_s=9000, save_s=9000, max_s=3600)
    assert (wide.of_step([]), wide.of_save(10)) == (9000, 9000)


@pytest.mark.parametrize("limits", [LIMITS, Limits(), Limits(min_s=0.25), Limits(enabled=False)])
def test_text_and_back(limits: Limits) -> None:
    assert Limits.from_text(limits.to_text()) == limits


@pytest.mark.parametrize(
    "text", ["", "nonsense", "min_s=", "min_s=-3", "min_s=nan", "min_s=inf", "=,,=", "other=3"]
)
def test_a_worker_does_not_fail_for_what_makes_no_sense(text: str) -> None:
    assert Limits.from_text(text) == Limits()


def test_one_value_alone() -> None:
    assert Limits.from_text(" min_s=7 ,x=1") == Limits(min_s=7)


def test_the_job_file_sets_them() -> None:
    made = plan(spec(hang={"min_s": 60, "factor": 3, "save_s": 4000}))
    assert made.hang == Limits(min_s=60, factor=3, save_s=4000)
    assert plan(spec(hang={"enabled": False})).hang.to_text() == "off"
    assert plan().hang == Limits()


def test_a_plan_reads_back_and_an_older_one_has_the_defaults() -> None:
    made = plan(spec(hang={"min_s": 60}))
    data = made.to_json()
    assert LaunchPlan.from_json(data) == made
    del data["hang"]
    assert LaunchPlan.from_json(data).hang == Limits()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_s": 0}, "hang.min_s"),
        ({"factor": 1.5}, "hang.factor"),
        ({"min_s": 600, "max_s": 500}, "raise max_s or lower min_s"),
        ({"limit": 3}, "save_s"),
    ],
)
def test_mistakes(given: dict[str, float], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        spec(hang=given)


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        (False, Limits(enabled=False)),
        (True, Limits()),
        ({"min_s": 60}, Limits(min_s=60)),
    ],
)
def test_a_job_switches_it(given: object, limits: Limits) -> None:
    assert spec(hang=given).hang.limits() == limits
