"""Messages name the keys of a job file as they are spelled there."""

import pytest

from orchestrator.errors import SpecError
from orchestrator.trainer.keys import in_job_file, spelled, under


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data.text_files: nothing matches x", "train.data.text_files: nothing matches x"),
        ("eval.sources.1.jsonl: x", "train.eval.sources.1.jsonl: x"),
        ("model: vocab_size must be 256", "train.model: vocab_size must be 256"),
        ("global_batch 6 cannot be shared out", "train.global_batch 6 cannot be shared out"),
        ("lr: was 1 and is 2", "train.lr: was 1 and is 2"),
        # No keys of `train:`.
        ("/a/train.json: is gone", "/a/train.json: is gone"),
        ("tokens are bytes", "tokens are bytes"),
        ("modelling: x", "modelling: x"),
        ("train.data: x", "train.data: x"),
        ("", ""),
    ],
)
def test_a_key_is_spelled_out(text: str, said: str) -> None:
    assert spelled(text) == said
    with pytest.raises(SpecError) as raised, in_job_file():
        raise SpecError(text)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/a/lines, line 5: is torn", "data.jsonl: /a/lines, line 5: is torn"),
        ("data.jsonl: nothing matches x", "data.jsonl: nothing matches x"),
    ],
)
def test_a_key_stands_in_front_once(text: str, said: str) -> None:
    with pytest.raises(SpecError) as raised, under("data.jsonl"):
        raise SpecError(text)
    assert str(raised.value) == said
