"""The loss of some rows after the other, each with its gradient while its logits are there.

Nothing is computed twice, and the head's own gradient is added up in fp32 from part to part.

Legend: R rows (tokens), D width of the model, V words of the vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

RowLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def loss_alone(
    hidden_RD: torch.Tensor,
    weight_VD: torch.Tensor,
    bias_V: torch.Tensor | None,
    targets_R: torch.Tensor,
    *,
    rows: int,
    row_loss: RowLoss,
) -> torch.Tensor:
    """Return the sum of the rows' losses, ``rows`` of them at a time."""
    total = hidden_RD.new_zeros((), dtype=torch.float32)
    for begin in range(0, len(hidden_RD), rows):
        part = slice(begin, begin + rows)
        total += row_loss(functional.linear(hidden_RD[part], weight_VD, bias_V), targets_R[part])
    return total


class LossInParts(torch.autograd.Function):
    """Loss and gradients of some rows after the other, divided by `divisor`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_RD: torch.Tensor,
        weight_VD: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_R: torch.Tensor,
        rows: int,
        divisor: int,
        row_loss: RowLoss,
    ) -> torch.Tensor:
        """Return the loss; its gradients are computed here, too."""
        of_hidden, of_weight, of_bias, *_ = ctx.needs_input_grad
        total = hidden_RD.new_zeros((), dtype=torch.float32)
        grad_hidden = torch.empty_like(hidden_RD) if of_hidden else None
        grad_weight = torch.zeros_like(weight_VD, dtype=torch.float32) if of_weight else None
        grad_bias = None
        if of_bias and bias_V is not None:
            grad_bias = torch.zeros_like(bias_V, dtype=torch.float32)
        for begin in range(0, len(hidden_RD), rows):
            part = slice(begin, begin + rows)
            logits = functional.linear(hidden_RD[part], weight_VD, bias_V)
            loss, grad = _loss_and_gradient(logits, targets_R[part], divisor, row_loss)
            total += loss
            if grad_hidden is not None:
                torch.mm(grad, weight_VD, out=grad_hidden[part])
            if grad_weight is not None:
                _add_product(grad_weight, grad.t(), hidden_RD[part])
            if grad_bias is not None:
                grad_bias += grad.sum(0, dtype=torch.float32)
            del logits, grad  # or they would stand beside those of the next part
        ctx.gradients = (grad_hidden, grad_weight, grad_bias)
        ctx.dtype = weight_VD.dtype
        return total.div_(divisor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Hand the gradients out."""
        hidden, weight, bias = ctx.gradients
        del ctx.gradients
        hidden, weight, bias = (
            None if gradient is None else gradient.mul_(above)
            for gradient in (hidden, weight, bias)
        )
        return (hidden, _cast(weight, ctx.dtype), _cast(bias, ctx.dtype), None, None, None, None)


def _loss_and_gradient(
    logits: torch.Tensor, targets: torch.Tensor, divisor: int, row_loss: RowLoss
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows' loss, and the gradient of it divided by ``divisor``."""
    with torch.enable_grad():
        logits.requires_grad_()
        loss = row_loss(logits, targets)
        (gradient,) = torch.autograd.grad(loss / divisor, logits)
    return loss.detach(), gradient


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _cast(gradient: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if gradient is None else gradient.to(dtype)
