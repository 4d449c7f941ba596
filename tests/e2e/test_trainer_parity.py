"""Whatever is traded for memory and speed, the run stays the same: compared on two ranks.

In fp32 most of it may not change a bit, neither of a loss nor of a weight after three steps. Where
sums are taken in another order (the loss in parts) they agree to 1e-6. In bf16 the plain run rounds
the head's gradient once and the one in parts once a part, so losses after an update agree to about
1e-3. Compiled code, which takes a minute to make, is compared in test_trainer_fast.
"""

import math
from typing import Any

import pytest

from tests.e2e.ranks import run_cases

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.e2e

TIED = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "tie_word_embeddings": True,
}
DROPOUT = {"model": {"config": {**TIED, "attention_dropout": 0.2}}}
BF16 = {"precision": "bf16"}
# What it is compared with, and what is changed.
SAME_BITS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("plain", {"activation_checkpointing": "full"}),
    "selective": ("plain", {"activation_checkpointing": "selective"}),
    "prefetch": ("plain", {"prefetch": 2}),
    "offload": ("plain", {"cpu_offload": True}),
    "skip": ("plain", {"nonfinite": "skip"}),
    "dropout-full": ("dropout", {**DROPOUT, "activation_checkpointing": "full"}),
    "dropout-selective": ("dropout", {**DROPOUT, "activation_checkpointing": "selective"}),
    "bf16-full": ("bf16", {**BF16, "activation_checkpointing": "full"}),
    "bf16-selective": ("bf16", {**BF16, "activation_checkpointing": "selective"}),
    "bf16-offload": ("bf16", {**BF16, "cpu_offload": True}),
}
CLOSE: dict[str, tuple[str, float, dict[str, Any]]] = {
    "parts": ("plain", 1e-6, {"loss_chunks": 3}),
    "tied-parts": ("tied", 1e-6, {"model": {"config": TIED}, "loss_chunks": 4}),
    "parts-unsharded": ("plain", 1e-6, {"loss_chunks": 2, "accumulate": "unsharded"}),
    "parts-full": ("plain", 1e-6, {"loss_chunks": 2, "activation_checkpointing": "full"}),
    "bf16-parts": ("bf16", 1e-3, {**BF16, "loss_chunks": 4}),
}
REFERENCES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": BF16,
    "dropout": DROPOUT,
    "tied": {"model": {"config": TIED}},
}
POISONED: dict[str, Any] = {"nonfinite": "skip", "poison": [1, 2]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    cases = {
        **REFERENCES,
        **{name: changes for name, (_, changes) in SAME_BITS.items()},
        **{name: changes for name, (_, _, changes) in CLOSE.items()},
        "poisoned": POISONED,
    }
    # Two micro-batches a step, so that accumulation is in it.
    two = {name: (2, {"micro_batch": 2, **changes}) for name, changes in cases.items()}
    return run_cases(tmp_path_factory.mktemp("parity"), two, timeout_s=500)


@pytest.mark.parametrize("name", SAME_BITS)
def test_not_a_bit_changes(results: dict[str, dict[str, Any]], name: str) -> None:
    found, wanted = results[name], results[SAME_BITS[name][0]]
    for key in ("names", "loss", "grad_norm", "after"):
        assert found[key] == wanted[key], key


@pytest.mark.parametrize("name", CLOSE)
def test_close(results: dict[str, dict[str, Any]], name: str) -> None:
    reference, tolerance, _ = CLOSE[name]
    found, wanted = results[name], results[reference]
    assert found["names"] == wanted["names"]
    for a, b in zip(found["loss"], wanted["loss"], strict=True):
        assert math.isclose(a, b, rel_tol=tolerance)
    for a, b in zip(found["grad_norm"], wanted["grad_norm"], strict=True):
        assert math.isclose(a, b, rel_tol=20 * tolerance)


def test_one_rank_is_enough_to_skip_a_step(results: dict[str, dict[str, Any]]) -> None:
    """Rank 1's loss of step 2 is no number: both ranks leave the update out, and go on."""
    found, plain = results["poisoned"], results["plain"]
    assert found["skipped"] == 1
    assert found["position"] == plain["position"]
    assert found["loss"][0] == plain["loss"][0]
    assert math.isnan(found["loss"][1])
    assert math.isfinite(found["loss"][2])
    assert found["loss"][2] != plain["loss"][2]  # one update fewer
