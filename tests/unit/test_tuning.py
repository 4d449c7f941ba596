from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import SpecError
from orchestrator.keys.fields import validate
from orchestrator.spec.train import LoraSpec, ModelSpec, TrainSpec

TRAIN: dict[str, Any] = {
    "model": {"config": "qwen3"},
    "data": {"text_files": ["text"], "seq_len": 16},
    "steps": 10,
    "global_batch": 4,
}


def test_a_family_by_its_name() -> None:
    assert ModelSpec.model_validate({"config": "qwen3"}).config == {"model_type": "qwen3"}


def test_all_of_the_model_trains_by_default() -> None:
    spec = TrainSpec.model_validate(TRAIN)
    assert spec.lora is None
    assert spec.freeze == ()


def test_alpha_follows_the_rank() -> None:
    assert LoraSpec(rank=8).scale == 2.0
    assert LoraSpec(rank=8, alpha=4).scale == 0.5


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lora": {"rank": 0}}, "greater than or equal to 1"),
        ({"lora": {"target_modules": "q_proj"}}, "all-linear, or a list"),
        ({"lora": {"target_modules": []}}, "all-linear, or a list"),
        ({"lora": {"target_modules": [1]}}, "all-linear, or a list"),
        ({"lora": {"target_modules": [""]}}, "is empty"),
        ({"model": {"path": " "}}, "is empty"),
        ({"data": {"text_files": ["a"], "seq_len": 8, "tokenizer": ""}}, "is empty"),
        ({"model": {"config": {"model_type": "llama", "auto_map": {}}}}, "never run"),
        ({"lora": {"dropout": 1.0}}, "less than 1"),
        ({"lora": {}, "freeze": ["model.*"]}, "either freeze or lora"),
        ({"model": {"config": "qwen3", "parity_check": "on"}}, "'auto' or 'off'"),
    ],
)
def test_mistakes(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        TrainSpec.model_validate({**TRAIN, **changes})


def test_a_mistake_inside_a_list_names_the_key_alone(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        validate(LoraSpec, {"target_modules": ["a\nb"]}, where=tmp_path, error=SpecError)
    assert str(caught.value) == (
        f"{tmp_path}: target_modules: contains the control character '\\n'; remove it"
        " (given: ['a\\nb'])"
    )


def test_a_written_specification_reads_back() -> None:
    spec = TrainSpec.model_validate({**TRAIN, "lora": {"target_modules": ["q_proj"]}})
    assert TrainSpec.model_validate(spec.model_dump(mode="json")) == spec
