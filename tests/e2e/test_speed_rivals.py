"""The model that the trainer's speed is compared with computes what Hugging Face's computes."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from tests.gpu.rivals import PlainLlama, Shape, rotary  # noqa: E402

pytestmark = pytest.mark.e2e

SHAPE = Shape(layers=2, hidden=64, inner=128, heads=4, kv_heads=2, vocab=512, seq_len=64)


def paired(weight: Any, heads: int) -> Any:
    """Return the rows in the order of a rotation of neighbours, not of halves."""
    width = weight.shape[0] // heads
    return weight.view(heads, 2, width // 2, -1).transpose(1, 2).reshape(weight.shape)


@torch.no_grad()  # type: ignore[untyped-decorator]
def test_same_function() -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(**SHAPE.config())
    hf = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain: Any = PlainLlama(SHAPE, how="off")
    plain.tok_embeddings.weight.copy_(hf.model.embed_tokens.weight)
    plain.output.weight.copy_(hf.lm_head.weight)
    for block, layer in zip(plain.layers, hf.model.layers, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        block.wq.weight.copy_(paired(attention.q_proj.weight, SHAPE.heads))
        block.wk.weight.copy_(paired(attention.k_proj.weight, SHAPE.kv_heads))
        block.wv.weight.copy_(attention.v_proj.weight)
        block.wo.weight.copy_(attention.o_proj.weight)
        block.w1.weight.copy_(mlp.gate_proj.weight)
        block.w2.weight.copy_(mlp.down_proj.weight)
        block.w3.weight.copy_(mlp.up_proj.weight)
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in hf.parameters())
    tokens = torch.randint(0, SHAPE.vocab, (2, SHAPE.seq_len))
    found = plain(tokens, rotary(SHAPE, torch.device("cpu")))
    torch.testing.assert_close(found, hf(input_ids=tokens).logits, rtol=1e-4, atol=1e-5)
