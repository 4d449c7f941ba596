"""The planner's answers: how many nodes it takes, which layouts fit, and how that is said."""

from __future__ import annotations

import pytest

from orchestrator.errors import SpecError
from orchestrator.planner import lines

from .models import LLAMA_8B, LLAMA_70B, TINY, of_70b, seen

# --- how many nodes ---------------------------------------------------------------------------


def test_more_nodes_are_not_needed() -> None:
    found = seen(config=TINY)
    assert (found.asked.fits, found.as_written) == (True, 1)
    assert found.answer.startswith("No: it fits on one node of 8 x H100-80")


def test_more_nodes_are_needed() -> None:
    """70 billion parameters: 1,120 GB of states do not fit on 8 x 80 GB, whatever is done."""
    found = seen(config=LLAMA_70B)
    assert found.asked.fits is False
    assert found.smallest is not None
    assert found.answer.startswith(f"Yes: it takes {found.smallest.nodes} nodes at least")
    assert found.layouts == ()


def test_any_number_of_nodes_that_the_batch_allows_is_looked_at() -> None:
    found = of_70b(60, nodes=15, activation_checkpointing="full")
    assert (found.asked.fits, found.as_written) == (True, 15)
    assert found.answer == "Yes: as it is it takes 15 nodes of 4 x H100-80."
    assert of_70b(60).smallest == found.layouts[0]  # not the 5 that the batch allows too


def test_the_fewest_nodes_are_the_fewest() -> None:
    found = of_70b(1120)
    smallest = found.smallest
    assert smallest is not None
    assert found.nodes_min == smallest.nodes
    assert found.to_json()["nodes_min_as_written"] == found.as_written
    assert found.as_written != smallest.nodes
    assert smallest.nodes == 7
    lean = {"micro_batch": 1, "activation_checkpointing": "full"}
    assert not any(of_70b(1120, nodes=n, **lean).asked.fits for n in (1, 2, 4, 5))


def test_a_batch_that_cannot_be_shared_out_over_enough_nodes() -> None:
    found = of_70b(12)
    assert (found.nodes_min, found.smallest) == (None, None)
    assert "5 nodes of 4 x H100-80 would do" in found.answer
    assert "and global_batch 20; global_batch 12 can be shared out over 1 or 3" in found.answer
    assert of_70b(20).smallest == found.of_any_batch


def test_what_fits_nowhere() -> None:
    found = of_70b(64, data={"text_files": ["x"], "seq_len": 2_000_000})
    assert found.answer.startswith("It fits on no number of nodes up to 1024 of 4 x H100-80")


def test_layouts_share_out_the_batch_and_fit() -> None:
    found = seen(nodes=2, config={**LLAMA_8B, "num_hidden_layers": 16})
    assert found.layouts
    for one in found.layouts:
        assert one.fits
        assert not one.tight
        assert 64 % (one.train.micro_batch * 16) == 0
    rates = [one.speed.tokens_per_s_per_gpu for one in found.layouts if one.speed]
    assert rates[0] >= 0.98 * max(rates)


# --- how it is said ---------------------------------------------------------------------------


def test_fp8_is_refused_where_the_gpu_has_none() -> None:
    assert seen(on="H200", fp8="rowwise", compile=True).options["fp8"] == "rowwise"
    with pytest.raises(SpecError, match="needs a Hopper GPU"):
        seen(on="A100-80", fp8="rowwise", compile=True)


def test_what_is_not_usual_is_shown() -> None:
    head = list(lines(seen(compile=True, cpu_offload=True, mesh={"replicate": 2, "shard": 4})))[1]
    assert "mesh: {replicate: 2, shard: 4}" in head
    assert "compile: true, cpu_offload: true" in head
    assert "fp8" not in head


def test_without_a_gpu_bytes_are_told_and_nothing_else() -> None:
    found = seen(on=None)
    data = found.to_json()
    assert (data["fits"], data["nodes_min"], data["step_s"]) == (None, None, None)
    assert data["peak_bytes"] > 16 * 8e9 / 8
    assert "--gpu" in found.answer


def test_json_has_the_keys_that_stay() -> None:
    data = seen().to_json()
    stay = "fits nodes_min per_gpu_bytes peak_bytes checkpoint_bytes step_s tokens_per_s_per_gpu"
    assert list(data)[:7] == stay.split()
    assert sum(data["per_gpu_bytes"].values()) == pytest.approx(data["peak_bytes"], abs=16)
    assert data["checkpoint_bytes"] == 12 * 8_030_261_248


def test_text_is_short_and_says_all() -> None:
    text = list(lines(seen(nodes=2)))
    assert len(text) <= 30
    whole = "\n".join(text)
    for word in ("8,030,261,248", "activations", "tokens/s/GPU", "checkpoints", "More than one"):
        assert word in whole


def test_small_sizes_are_told_in_mib() -> None:
    config = {**TINY, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    text = "\n".join(lines(seen(config=config, micro_batch=1)))
    assert "0.00 GiB" not in text
    assert "0.0 GiB" not in text
    assert "MiB  parameters, fp32" in text
    assert "checkpoints: 1.3 MiB each, 3.9 MiB of disk" in text


def test_one_step_is_no_steps() -> None:
    found = seen(checkpoint={"max_interval_s": 1e-3})
    assert "1 step" in [line.rpartition(", ")[2] for line in lines(found)]
