"""What cannot be trained is refused before the first step, in words about the cause."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM  # noqa: E402

from orchestrator.errors import SpecError  # noqa: E402
from tests.e2e.desk import LORA, Desk, losses  # noqa: E402
from tests.e2e.family_models import LLAMA  # noqa: E402

pytestmark = pytest.mark.e2e


def spoil(path: str, name: str, value: float, *, first: int) -> None:
    """Set the ``first`` numbers of a weight in the directory ``path``."""
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[:first] = value
    model.save_pretrained(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("spec", [{}, {"lora": LORA}, {"model": {"parity_check": "off"}}])
def test_weights_that_are_not_finite(desk: Desk, value: float, spec: dict[str, Any]) -> None:
    path, name = desk.model(), "model.layers.1.mlp.up_proj.weight"
    spoil(path, name, value, first=1)
    changes = {**spec, "model": {"path": path, **spec.get("model", {})}}
    with pytest.raises(SpecError, match=rf"hold NaN or infinity, in {name}; nothing could"):
        desk.build(path, **changes)


def test_frozen_ones_are_looked_at_in_a_resume(desk: Desk) -> None:
    path = desk.model()
    folder = desk.publish(desk.build(path, lora=LORA))
    assert folder.is_dir()
    desk.build(path, fresh=False, lora=LORA)  # what is not read yet may hold anything
    spoil(path, "model.norm.weight", float("nan"), first=1)
    with pytest.raises(SpecError, match=r"NaN or infinity, in model\.norm\.weight;"):
        desk.build(path, fresh=False, lora=LORA)


def test_a_head_of_zeros_is_the_same_model(desk: Desk) -> None:
    path = desk.model()
    spoil(path, "lm_head.weight", 0.0, first=LLAMA["vocab_size"] * LLAMA["hidden_size"])
    assert losses(desk.build(path), 1) == [pytest.approx(5.545177, abs=1e-5)]  # ln 256


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("lama", r"^model: config: model_type 'lama' is no family .* did you mean llama"),
        ("llama3", r"^model: config: model_type 'llama3' .* did you mean llama"),
        ("Qwen3", r"did you mean qwen3"),
        ("zzzzzz", r"knows, such as llama, qwen3 or mistral$"),
        ("t5", r"^model: T5Config does not make a model: transformers has no causal language"),
    ],
)
def test_a_family_that_there_is_not(desk: Desk, family: str, text: str) -> None:
    with pytest.raises(SpecError, match=text) as raised:
        desk.build("", model={"config": family})
    assert len(str(raised.value)) < 200


def test_a_family_that_there_is_not_in_a_directory(desk: Desk) -> None:
    path = Path(desk.model()) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "lama"}))
    with pytest.raises(SpecError, match=rf"^model.path: {path}: model_type 'lama' is no family"):
        desk.build(str(path.parent))
