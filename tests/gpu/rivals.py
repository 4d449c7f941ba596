"""What fsdpq's trainer is measured against: the same model and step, as others write them.

`PlainLlama` is a Llama in plain PyTorch, of the kind that torchtitan trains: nn.RMSNorm, rotary
embedding by complex numbers, SDPA. A step of `plain` does what torchtitan's train step does, in the
same order: blocks compiled one by one, `fully_shard` per block, loss compiled and divided by the
tokens, `clip_grad_norm_`, fused AdamW, and no waiting for the GPU between steps. It is a loop of
this project's own; torchtitan itself is in `titan`.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from orchestrator.trainer import recompute

Batch = torch.Tensor  # tokens and one more, int64
Step = Callable[[Batch], torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """A Llama's measures."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    seq_len: int

    def config(self) -> dict[str, Any]:
        """Return the same as a Hugging Face configuration."""
        return {
            "model_type": "llama",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.seq_len,
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
        }


@dataclass(frozen=True)
class Options:
    """What is turned on."""

    compile: bool = False
    recompute: str = "off"
    fp8: str = "off"


def rotary(shape: Shape, device: torch.device) -> torch.Tensor:
    """Return the rotations of all positions as complex numbers."""
    width = shape.hidden // shape.heads
    steps = torch.arange(0, width, 2, device=device).float() / width
    angles = torch.outer(torch.arange(shape.seq_len, device=device).float(), 500000.0**-steps)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Turn the heads of ``x`` (B, L, heads, width)."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * rotations[None, :, None, :])
    return turned.flatten(-2).type_as(x)


class Block(nn.Module):
    """Attention and gated MLP."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.hidden // shape.heads
        inner = shape.kv_heads * self.width
        self.wq = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.wk = nn.Linear(shape.hidden, inner, bias=False)
        self.wv = nn.Linear(shape.hidden, inner, bias=False)
        self.wo = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.w1 = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.w2 = nn.Linear(shape.inner, shape.hidden, bias=False)
        self.w3 = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.ffn_norm = nn.RMSNorm(shape.hidden, eps=1e-6)

    def forward(self, x: torch.Tensor, rotations: torch.Tensor) -> Any:
        """Return the next hidden states."""
        h = self.attention_norm(x)
        q, k, v = (w(h).unflatten(-1, (-1, self.width)) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, rotations), rotate(k, rotations)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(out.transpose(1, 2).flatten(-2))
        h = self.ffn_norm(x)
        out = self.w2(functional.silu(self.w1(h)) * self.w3(h))
        return x + out


class PlainLlama(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, shape: Shape, *, how: str) -> None:
        super().__init__()
        self.how = how
        self.tok_embeddings = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-6)
        self.output = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, rotations)
        logits: torch.Tensor = self.output(self.norm(x))
        return logits


def _computed_again(how: str) -> Any:
    """Return a block's forward, checkpointed by the policy that fsdpq uses, too."""
    extra: dict[str, Any] = {"context_fn": recompute._contexts} if how == "selective" else {}

    def forward(self: Block, *args: Any) -> Any:
        return checkpoint(type(self).forward, self, *args, use_reentrant=False, **extra)

    return forward


def row_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the sum of the losses."""
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), reduction="sum"
    )


def plain(shape: Shape, options: Options, mesh: DeviceMesh, device: torch.device) -> Step:
    """Return a training step of the plain loop."""
    with torch.device("meta"):
        model = PlainLlama(shape, how=options.recompute)
    if options.fp8 != "off":
        float8(model, options.fp8)
    for layer in model.layers:
        if options.recompute != "off":
            layer.forward = _computed_again(options.recompute).__get__(layer)
        if options.compile:
            layer.compile(fullgraph=True)
    policy = MixedPrecisionPolicy()
    if device.type == "cuda":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    cut: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    fully_shard(model.tok_embeddings, **cut)
    for layer in model.layers:
        fully_shard(layer, **cut)
    fully_shard([model.norm, model.output], reshard_after_forward=False, **cut)
    fully_shard(model, **cut)
    model.to_empty(device=device)
    torch.manual_seed(mesh.get_rank())  # each rank draws its own shards
    with torch.no_grad():
        for parameter in model.parameters():
            shard = parameter.to_local()  # type: ignore[attr-defined]
            shard.fill_(1.0) if parameter.dim() < 2 else shard.normal_(std=0.02)
    optimizer = AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    loss_of = torch.compile(row_loss) if options.compile else row_loss
    rotations = rotary(shape, device)

    def step(batch: Batch) -> torch.Tensor:
        optimizer.zero_grad()
        tokens, targets = batch[:, :-1], batch[:, 1:]
        loss = loss_of(model(tokens, rotations), targets) / targets.numel()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        return loss.detach()

    return step


def float8(model: nn.Module, recipe: str) -> None:
    """Let all linear layers but the head multiply in FP8."""
    ao = importlib.import_module("torchao.float8")
    ao.convert_to_float8_training(
        model,
        module_filter_fn=lambda module, name: name != "output",
        config=ao.Float8LinearConfig.from_recipe_name(recipe),
    )


def accelerated(shape: Shape, options: Options, device: torch.device) -> Step:
    """Return a training step of Hugging Face accelerate with its FSDP2 plugin."""
    accelerate = importlib.import_module("accelerate")
    from transformers import AutoConfig, AutoModelForCausalLM

    plugin = accelerate.utils.FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        reshard_after_forward=True,
        activation_checkpointing=options.recompute == "full",
        state_dict_type="SHARDED_STATE_DICT",
        cpu_ram_efficient_loading=False,
    )
    precision = "bf16" if device.type == "cuda" else "no"
    accelerator = accelerate.Accelerator(mixed_precision=precision, fsdp_plugin=plugin)
    config = AutoConfig.for_model(**shape.config(), use_cache=False)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    if options.compile:
        for layer in model.model.layers:
            layer.compile()
    optimizer = AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    if not all(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise RuntimeError("accelerate has not sharded the model")

    def step(batch: Batch) -> torch.Tensor:
        optimizer.zero_grad()
        logits = model(input_ids=batch[:, :-1]).logits
        loss = row_loss(logits, batch[:, 1:]) / batch[:, 1:].numel()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step
