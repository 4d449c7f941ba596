"""The same run on 1, 2 and 4 ranks and as HSDP: same first weights, same samples, same losses."""

import math
from typing import Any

import pytest

from tests.e2e.ranks import run_cases

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "two": (2, {}),
    "four": (4, {}),
    "hsdp": (4, {"mesh": {"replicate": 2}}),
    "kept": (2, {"reshard_after_forward": False, "accumulate": "unsharded"}),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return run_cases(tmp_path_factory.mktemp("ranks"), CASES)


@pytest.mark.parametrize("name", CASES)
def test_same_run(results: dict[str, dict[str, Any]], name: str) -> None:
    found, one = results[name], results["one"]
    assert found["weights"] == one["weights"]  # bit for bit
    assert found["position"] == one["position"] == 24
    for key in ("loss", "grad_norm"):
        for a, b in zip(found[key], one[key], strict=True):
            assert math.isclose(a, b, rel_tol=1e-5), key


@pytest.mark.parametrize(
    ("name", "share"), [("one", 1), ("two", 1 / 2), ("four", 1 / 4), ("hsdp", 1 / 2)]
)
def test_memory_is_shared_out(results: dict[str, dict[str, Any]], name: str, share: float) -> None:
    assert results[name]["share"] == pytest.approx(share, rel=0.02)
