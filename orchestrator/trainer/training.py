"""The parts of a training run, and one step of it.

Legend: B sequences of a micro-batch, L tokens of a sequence, V words of the vocabulary.
"""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.corpus import Corpus
from orchestrator.trainer.model import build_model
from orchestrator.trainer.randomness import seed_all
from orchestrator.trainer.sampler import Ids, Sampler, rank_positions
from orchestrator.trainer.schedule import lr_factor
from orchestrator.trainer.state import AppState
from orchestrator.trainer.world import World


@dataclass(frozen=True, slots=True)
class Result:
    """What one step gave, the same on all ranks.

    Attributes:
        loss: Mean over the tokens of the global batch, before the step.
        grad_norm: Norm of the whole gradient before clipping.
        lr: The learning rate of the step.
    """

    loss: float
    grad_norm: float
    lr: float


@dataclass(frozen=True, slots=True)
class Training:
    """The parts of a training run."""

    spec: TrainSpec
    world: World
    model: PreTrainedModel
    state: AppState
    corpus: Corpus
    sampler: Sampler

    @property
    def num_parameters(self) -> int:
        """How many parameters the whole model has."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def build(spec: TrainSpec, world: World, corpus: Corpus, *, fresh: bool) -> Training:
    """Return all parts at step 0; without ``fresh`` the weights are yet to be loaded."""
    model = build_model(spec, world, fresh=fresh)
    optimizer = build_optimizer(model, spec)
    scheduler = LambdaLR(optimizer, lambda done: lr_factor(done, spec=spec))
    seed_all(seed=spec.seed, step=0, rank=world.rank)
    state = AppState(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        world=world,
        seed=spec.seed,
        fingerprint=corpus.fingerprint,
    )
    return Training(spec, world, model, state, corpus, Sampler(corpus.num_samples, spec.seed))


def build_optimizer(model: PreTrainedModel, spec: TrainSpec) -> AdamW:
    """Return AdamW over what is trained; norms and biases (less than two axes) do not decay.

    Made after sharding: one made before would hold the unsharded parameters and change nothing.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": spec.weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW([g for g in groups if g["params"]], lr=spec.lr, betas=spec.betas, fused=True)


def train_step(training: Training) -> Result:
    """Take one optimizer step on the next global batch. Collective.

    Raises:
        FloatingPointError: Loss or gradient is no longer finite; nothing was changed.
    """
    spec, state = training.spec, training.state
    loss = _accumulate(training)
    dist.all_reduce(loss)
    norm = _clip(training)
    if not (math.isfinite(loss.item()) and math.isfinite(norm)):
        raise FloatingPointError(
            f"step {state.step + 1}: the loss is {loss.item()} and the gradient norm {norm}; lower"
            " lr or clip_norm, or look at the samples of this step"
        )
    lr = float(state.scheduler.get_last_lr()[0])
    state.optimizer.step()
    state.scheduler.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    state.position += spec.global_batch
    return Result(loss=loss.item(), grad_norm=norm, lr=lr)


def _accumulate(training: Training) -> torch.Tensor:
    """Add up the gradients of this rank's micro-batches; return its part of the mean loss."""
    spec, world = training.spec, training.world
    batches = rank_positions(
        training.state.position,
        global_batch=spec.global_batch,
        micro_batch=spec.micro_batch,
        rank=world.rank,
        world_size=world.size,
    )
    tokens = spec.global_batch * spec.data.seq_len
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for number, positions in enumerate(batches, start=1):
        last = number == len(batches)
        training.model.set_is_last_backward(last)
        training.model.set_requires_all_reduce(last)
        if spec.accumulate == "unsharded":
            training.model.set_requires_gradient_sync(last)
        loss = _loss_sum(training, positions) / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total


def _loss_sum(training: Training, positions: Ids) -> torch.Tensor:
    windows = training.corpus.windows(training.sampler.ids(positions))
    tokens_BL1 = torch.from_numpy(windows).to(training.world.device, non_blocking=True)
    logits_BLV = training.model(input_ids=tokens_BL1[:, :-1]).logits
    # Sums in fp32: in bf16 the loss of a long sequence would have two digits.
    return functional.cross_entropy(
        logits_BLV.float().flatten(0, 1), tokens_BL1[:, 1:].flatten(), reduction="sum"
    )


def _clip(training: Training) -> float:
    limit = training.spec.clip_norm or math.inf
    norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), limit)
    # Each rank holds a part of the norm: putting it together is collective.
    whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return float(whole.item())
