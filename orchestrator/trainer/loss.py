"""Cross-entropy over the vocabulary, without the logits of a whole micro-batch at once.

With a vocabulary of 128,000 words the logits of 16,384 tokens take 8 GiB in fp32, and their
gradient as much again: more than all the rest of a model of a billion parameters. So the head is
applied to some tokens at a time.

Legend: B sequences of a micro-batch, L tokens of a sequence, R = B * L rows, D width of the model,
V words of the vocabulary.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from orchestrator.errors import SpecError
from orchestrator.spec.train import TrainSpec, rows_at_once
from orchestrator.trainer.chunked import LossInParts, RowLoss, loss_alone
from orchestrator.trainer.logits import Adjust, adjust_of, why_whole


def attach_loss(model: PreTrainedModel, spec: TrainSpec) -> None:
    """Let ``model`` return its loss where it is called with `targets`.

    `model(input_ids=..., targets=..., divisor=n)` then gives the sum of the tokens' losses, divided
    by n, in fp32. It is computed within the model's forward, so that `fully_shard` gathers the head
    once. Without `targets` the model is what it was. Called before sharding.

    Raises:
        SpecError: `loss_chunks` asks for parts, and this model does not allow them.
    """
    rows = spec.micro_batch * spec.data.seq_len
    wanted, vocabulary = spec.loss_chunks, model.config.get_text_config().vocab_size
    whole = rows_at_once(rows, vocabulary, wanted) == rows
    problem = "" if whole else why_whole(model)
    if problem and wanted != "auto":
        raise SpecError(f"loss_chunks: {problem}; use loss_chunks: 1")
    if whole or problem:
        model.forward = MethodType(_whole(model.forward, _row_loss(Adjust(), spec)), model)
        return
    head, row_loss = model.get_output_embeddings(), _row_loss(adjust_of(model), spec)
    model.forward = MethodType(_in_parts(model.forward, head), model)
    head.forward = MethodType(_head_forward(row_loss, wanted), head)


def _row_loss(adjust: Adjust, spec: TrainSpec) -> RowLoss:
    def row_loss(logits_RV: torch.Tensor, targets_R: torch.Tensor) -> torch.Tensor:
        # Sums in fp32: in bf16 the loss of a long sequence would have two digits.
        return functional.cross_entropy(adjust(logits_RV.float()), targets_R, reduction="sum")

    # Compiled, fp32 logits exist in registers alone.
    return torch.compile(row_loss, dynamic=False) if spec.compile else row_loss


def _whole(plain: Callable[..., Any], row_loss: RowLoss) -> Callable[..., Any]:
    def forward(
        self: PreTrainedModel,
        *args: Any,
        targets: torch.Tensor | None = None,
        divisor: int = 1,
        **kwargs: Any,
    ) -> Any:
        if targets is None:
            return plain(*args, **kwargs)
        logits_BLV = plain(*args, **kwargs).logits
        return row_loss(logits_BLV.flatten(0, 1), targets.flatten()) / divisor

    return forward


def _in_parts(plain: Callable[..., Any], head: nn.Module) -> Callable[..., Any]:
    def forward(
        self: PreTrainedModel,
        *args: Any,
        targets: torch.Tensor | None = None,
        divisor: int = 1,
        **kwargs: Any,
    ) -> Any:
        if targets is None:
            return plain(*args, **kwargs)
        hidden_BLD = self.base_model(*args, **kwargs)[0]
        return head(hidden_BLD.flatten(0, 1), targets.flatten(), divisor)

    return forward


def _head_forward(row_loss: RowLoss, wanted: int | str) -> Callable[..., torch.Tensor]:
    def forward(
        self: nn.Linear,
        hidden_RD: torch.Tensor,
        targets_R: torch.Tensor | None = None,
        divisor: int = 1,
    ) -> torch.Tensor:
        if targets_R is None:
            return functional.linear(hidden_RD, self.weight, self.bias)
        rows = rows_at_once(len(hidden_RD), self.weight.shape[0], wanted)
        if not torch.is_grad_enabled():
            return loss_alone(
                hidden_RD, self.weight, self.bias, targets_R, rows=rows, row_loss=row_loss
            ).div_(divisor)
        loss: torch.Tensor = LossInParts.apply(  # type: ignore[no-untyped-call]
            hidden_RD, self.weight, self.bias, targets_R, rows, divisor, row_loss
        )
        return loss

    return forward
