"""The loss in parts is the loss, whatever the model does to its logits, and needs less memory."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from orchestrator.errors import SpecError  # noqa: E402
from orchestrator.spec.train import TrainSpec, parallel, rows_at_once  # noqa: E402
from orchestrator.trainer.logits import adjust_of, why_whole  # noqa: E402
from orchestrator.trainer.loss import attach_loss  # noqa: E402

pytestmark = pytest.mark.e2e

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 600,
    "initializer_range": 0.3,  # logits that a cap makes a difference to
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "tied": {**SMALL, "tie_word_embeddings": True},
    "gemma2": {**SMALL, "model_type": "gemma2", "head_dim": 8, "final_logit_softcapping": 2.0},
    "cohere": {**SMALL, "model_type": "cohere", "logit_scale": 0.25},
    "granite": {**SMALL, "model_type": "granite", "logits_scaling": 4.0},
    "phi": {**SMALL, "model_type": "phi"},  # a head with a bias
}
# So narrow that logits are larger than weights.
NARROW = {**SMALL, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
ROWS = 2 * 24


def spec_of(config: dict[str, Any], **changes: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "model": {"config": config, "attention": "eager"},
            "data": {"text_files": ["x"], "seq_len": 24},
            "steps": 1,
            "global_batch": 2,
            "micro_batch": 2,
            "precision": "fp32",
            **changes,
        }
    )


def build(config: dict[str, Any], dtype: Any = None, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config), dtype=dtype or torch.float32, attn_implementation="eager"
    )
    attach_loss(model, spec_of(config, **changes))
    return model.train()


@pytest.fixture
def tokens() -> Any:
    torch.manual_seed(4)
    return torch.randint(0, 600, (2, 25))


def run(model: Any, tokens: Any) -> tuple[float, dict[str, Any]]:
    """Return loss and gradients of a step on ``tokens``, of which two do not count."""
    targets = tokens[:, 1:].clone()
    targets[0, :2] = -100
    loss = model(input_ids=tokens[:, :-1], targets=targets, divisor=46)
    loss.backward()
    return loss.item(), {key: p.grad for key, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("chunks", [2, 5])
@pytest.mark.parametrize("name", MODELS)
def test_same_loss_and_gradients(name: str, chunks: int, tokens: Any) -> None:
    loss, gradients = run(build(MODELS[name], loss_chunks=1), tokens)
    found, of = run(build(MODELS[name], loss_chunks=chunks), tokens)
    assert found == pytest.approx(loss, rel=1e-6)
    assert set(of) == set(gradients)
    for key, gradient in of.items():
        torch.testing.assert_close(gradient, gradients[key], rtol=2e-5, atol=1e-7)


def test_in_bf16_it_is_as_close_to_the_truth_as_the_plain_loss(tokens: Any) -> None:
    truth, gradients = run(build(SMALL, torch.float64, loss_chunks=1), tokens)

    def error(chunks: int) -> float:
        model = build(SMALL, torch.float64, loss_chunks=chunks).to(torch.bfloat16)
        loss, of = run(model, tokens)
        assert loss == pytest.approx(truth, rel=0.02)
        key = "lm_head.weight"
        return float((of[key].double() - gradients[key]).norm() / gradients[key].norm())

    assert error(4) <= 1.05 * error(1)


def test_a_frozen_head_gets_no_gradient(tokens: Any) -> None:
    model = build(SMALL, loss_chunks=3)
    model.lm_head.requires_grad_(False)
    model.model.embed_tokens.requires_grad_(False)
    _, gradients = run(model, tokens)
    assert model.lm_head.weight.grad is None
    assert len(gradients) == len(list(model.parameters())) - 2


def test_without_gradients_and_without_targets(tokens: Any) -> None:
    model = build(SMALL, loss_chunks=3)
    wanted, _ = run(model, tokens)
    targets = tokens[:, 1:].clone()
    targets[0, :2] = -100
    with torch.no_grad():
        loss = model(input_ids=tokens[:, :-1], targets=targets, divisor=46)
        logits = model(input_ids=tokens[:, :-1]).logits
    assert loss.item() == pytest.approx(wanted, rel=1e-6)
    assert not loss.requires_grad
    assert logits.shape == (2, 24, 600)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how many numbers the largest result of an operator has."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, list | tuple) else [result]:
            if isinstance(part, torch.Tensor):
                self.numbers = max(self.numbers, part.numel())
        return result


@pytest.mark.parametrize(("chunks", "rows"), [(1, ROWS), (4, ROWS // 4)])
def test_logits_never_exist_whole(chunks: int, rows: int, tokens: Any) -> None:
    model = build(NARROW, loss_chunks=chunks)
    largest = Largest()
    with largest:
        run(model, tokens)
    assert largest.numbers == rows * 600


def test_auto_follows_the_size_of_the_logits(monkeypatch: pytest.MonkeyPatch, tokens: Any) -> None:
    def numbers() -> int:
        model = build(NARROW)
        largest = Largest()
        with largest:
            run(model, tokens)
        return largest.numbers

    assert numbers() == ROWS * 600  # far below 1 GiB
    monkeypatch.setattr(parallel, "LOGITS_AT_ONCE", 16 * 600 * 4)
    assert numbers() == 16 * 600


@pytest.mark.parametrize(
    ("rows", "vocabulary", "wanted", "length"),
    [
        (16384, 32000, "auto", 8192),
        (16384, 128256, "auto", 2048),
        (8192, 128256, "auto", 2048),
        (1000, 256, "auto", 1000),
        (4, 2**40, "auto", 1),
        (8, 2**28 // 3, "auto", 2),  # 3 at once would do, but leave a part of another length
        (7, 2**28 // 3, "auto", 3),
        (16384, 128256, 3, 5462),
        (4, 256, 9, 1),
    ],
)
def test_length_of_a_part(rows: int, vocabulary: int, wanted: Any, length: int) -> None:
    assert parallel.LOGITS_AT_ONCE == 2**30
    assert rows_at_once(rows, vocabulary, wanted) == length


# -- what is not known -----------------------------------------------------------------------------


@pytest.fixture
def odd() -> Any:
    """A model that does to its logits what no configuration says."""
    from transformers import LlamaForCausalLM

    class Odd(LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits + 1
            return output

    from transformers import AutoConfig

    with torch.device("meta"):
        return Odd(AutoConfig.for_model(**SMALL))


def test_a_model_that_does_more_to_its_logits(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "does more to its logits" in why_whole(odd)
    with pytest.raises(SpecError, match="use loss_chunks: 1"):
        attach_loss(odd, spec_of(SMALL, loss_chunks=2))
    monkeypatch.setattr(parallel, "LOGITS_AT_ONCE", 1)
    attach_loss(odd, spec_of(SMALL))  # auto: whole, then
    assert "forward" not in vars(odd.lm_head)


def test_a_head_that_is_no_linear_layer(odd: Any) -> None:
    odd.lm_head = torch.nn.Sequential(odd.lm_head)
    odd.set_output_embeddings(odd.lm_head)
    assert "Sequential" in why_whole(odd)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_asked_without_having_memory(name: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**MODELS[name]), attn_implementation="eager"
        )
    assert why_whole(model) == ""
    assert "forward" not in vars(model.lm_head)
    assert "forward" not in vars(model.base_model)
    plain = name in ("llama", "tied", "phi")
    assert (adjust_of(model)(torch.ones(2)) == 1).all() == plain
