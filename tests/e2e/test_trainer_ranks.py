"""The same run on 1, 2 and 4 ranks and as HSDP: same first weights, same samples, same losses."""

import math
from typing import Any

import pytest

from tests.e2e.ranks import run_cases

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e

EVAL = {"text_files": ["text"], "every": 2, "batches": 3}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "eval-one": (1, {"eval": EVAL, "micro_batch": 2, "lr": 1e-30}),
    "eval-two": (2, {"eval": EVAL, "micro_batch": 2, "lr": 1e-30}),
    "eval-four": (4, {"eval": EVAL, "micro_batch": 2, "lr": 1e-30}),
    "two": (2, {}),
    "four": (4, {}),
    "hsdp": (4, {"mesh": {"replicate": 2}}),
    "kept": (2, {"reshard_after_forward": False, "accumulate": "unsharded"}),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return run_cases(tmp_path_factory.mktemp("ranks"), CASES)


@pytest.mark.parametrize("name", [name for name in CASES if "eval" not in name])
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


def test_validation_is_the_same_to_the_last_bit(results: dict[str, dict[str, Any]]) -> None:
    """With a learning rate that changes no weight, so that there is nothing else to differ."""
    one, two, four = (
        [{**line, "seconds": 0} for line in results[f"eval-{name}"]["eval"]]
        for name in ("one", "two", "four")
    )
    assert [(line["step"], line["tokens"]) for line in one] == [(2, 3 * 8 * 16)]
    assert one == two == four
