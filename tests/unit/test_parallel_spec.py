"""Keys of `train` for memory, speed and safety; read without torch."""

from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.spec.train import TrainSpec


def spec(**changes: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "model": {"config": {"model_type": "llama"}},
            "data": {"text_files": ["x"], "seq_len": 8},
            "steps": 1,
            "global_batch": 1,
            **changes,
        }
    )


def test_nothing_is_traded_unless_asked() -> None:
    plain = spec()
    assert (plain.activation_checkpointing, plain.compile, plain.fp8) == ("off", False, "off")
    assert (plain.loss_chunks, plain.prefetch, plain.cpu_offload) == ("auto", 0, False)
    assert (plain.nonfinite, plain.nonfinite_limit) == ("stop", 10)


def test_a_round_trip() -> None:
    wanted = spec(
        activation_checkpointing="selective",
        compile=True,
        fp8="rowwise",
        loss_chunks=4,
        prefetch=2,
        cpu_offload=True,
        nonfinite="skip",
        nonfinite_limit=3,
    )
    assert TrainSpec.model_validate_json(wanted.model_dump_json()) == wanted


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"activation_checkpointing": "some"}, "activation_checkpointing"),
        ({"loss_chunks": 0}, "1 to 65,536, or auto"),
        ({"loss_chunks": True}, "1 to 65,536, or auto"),
        ({"loss_chunks": "few"}, "1 to 65,536, or auto"),
        ({"prefetch": -1}, "prefetch"),
        ({"prefetch": 9}, "prefetch"),
        ({"fp8": "e4m3"}, "fp8"),
        ({"fp8": "rowwise"}, "fp8 needs compile: true"),
        ({"fp8": "tensorwise", "compile": True, "precision": "fp32"}, "needs precision: bf16"),
        ({"nonfinite": "ignore"}, "nonfinite"),
        ({"nonfinite_limit": 0}, "nonfinite_limit"),
        ({"compile": "yes"}, r"compile\n  Input should be a valid boolean"),
        ({"cpu_offload": 1}, r"cpu_offload\n  Input should be a valid boolean"),
        ({"deterministic": "no"}, r"deterministic\n  Input should be a valid boolean"),
        ({"reshard_after_forward": "off"}, r"forward\n  Input should be a valid boolean"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        spec(**changes)
