"""The parts of a training run, and one step of it.

Legend: B sequences of a micro-batch, L tokens of a sequence, V words of the vocabulary.
"""

import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.attending import attend
from orchestrator.trainer.corpus import Corpus
from orchestrator.trainer.freezing import frozen_names, leaves_out_frozen
from orchestrator.trainer.identity import identify
from orchestrator.trainer.loader import Loader, check_vocabulary
from orchestrator.trainer.mixture import Order, order_of
from orchestrator.trainer.model import Say, build_model
from orchestrator.trainer.pace import Stopwatch
from orchestrator.trainer.parity import check_parity
from orchestrator.trainer.randomness import seed_all
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
        skipped: Loss or gradient was not finite, and the update was left out.
        data_wait_s: How long this rank waited for its samples.
        own_s: How long it was busy by itself, see `pace`.
    """

    loss: float
    grad_norm: float
    lr: float
    skipped: bool = False
    data_wait_s: float = 0.0
    own_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Training:
    """The parts of a training run."""

    spec: TrainSpec
    world: World
    model: PreTrainedModel
    state: AppState
    corpus: Corpus
    loader: Loader

    @property
    def sampler(self) -> Order:
        """Which sample is at which position."""
        return self.loader.order

    @property
    def num_parameters(self) -> int:
        """How many parameters the whole model has."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def num_trained(self) -> int:
        """How many of them train."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)


def build(
    spec: TrainSpec,
    world: World,
    corpus: Corpus,
    *,
    fresh: bool,
    say: Say = lambda text: None,
) -> Training:
    """Return all parts at step 0; without ``fresh`` the weights are yet to be loaded.

    ``say`` is told what people should know.

    Raises:
        SpecError: The model cannot be built as the specification says.
    """
    model = build_model(spec, world, fresh=fresh, say=say)
    loader = _loader(model, spec, world, corpus)
    if fresh and spec.model.path is not None:
        say(check_parity(model, spec, world, corpus))
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
        identity=identify(model, spec, world),
        without=frozenset(frozen_names(model)) if leaves_out_frozen(model, spec) else frozenset(),
    )
    return Training(spec, world, model, state, corpus, loader)


def _loader(model: PreTrainedModel, spec: TrainSpec, world: World, corpus: Corpus) -> Loader:
    vocabulary = model.config.get_text_config().vocab_size
    check_vocabulary(corpus, vocabulary)
    order = order_of(corpus, seed=spec.seed)
    return Loader(corpus, order, spec, world, vocabulary=vocabulary)


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
    watch = Stopwatch.start(on_gpu=training.world.device.type == "cuda")
    loss, data_wait_s = _accumulate(training)
    norm = _clip(training)
    totals = torch.stack((loss, (~norm.isfinite()).double()))
    dist.all_reduce(totals)  # one word of all ranks, on the loss as on whether the step is sound
    bad = ~totals[0].isfinite() | (totals[1] > 0)
    lr = float(state.scheduler.get_last_lr()[0])
    step_unless(bad, state.optimizer)
    own_s = watch.read(waited_s=data_wait_s)
    # The first time that the processor waits for the GPU: by now the whole step is in its queue.
    values = torch.stack((totals[0], norm.double(), bad.double())).tolist()
    result = Result(values[0], values[1], lr, bool(values[2]), data_wait_s, own_s)
    if result.skipped:
        _check_policy(result, spec, state)
    state.count_skipped(skipped=result.skipped)
    state.scheduler.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    state.position += spec.global_batch
    return result


def step_unless(bad: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Take a step unless ``bad`` is true, which only the device knows yet.

    Fused optimizers look at `found_inf`, as GradScaler sets it, in the kernel that would change
    parameters; what they count goes back, too.
    """
    device = optimizer.param_groups[0]["params"][0].device
    optimizer.found_inf = bad.float().to(device)  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.found_inf  # type: ignore[attr-defined]


def _check_policy(result: Result, spec: TrainSpec, state: AppState) -> None:
    what = (
        f"step {state.step + 1}: the loss is {result.loss} and the gradient norm {result.grad_norm}"
    )
    advice = (
        "look at the samples of this step, set nonfinite: skip, or start another run with a lower"
        " lr or clip_norm"
    )
    if spec.nonfinite == "stop":
        raise FloatingPointError(f"{what}; {advice}")
    if state.skipped_in_a_row + 1 >= spec.nonfinite_limit:
        raise FloatingPointError(
            f"{what}; {spec.nonfinite_limit} steps in a row were like that; {advice}"
        )


def _accumulate(training: Training) -> tuple[torch.Tensor, float]:
    """Add up the gradients of this rank's micro-batches.

    Returns its part of the mean loss, and how many seconds it waited for samples.
    """
    spec, world = training.spec, training.world
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    began = time.perf_counter()
    portion = training.loader.portion(training.state.position)
    tokens = portion.divisor.result()
    waited_s = time.perf_counter() - began
    for number, future in enumerate(portion.batches, start=1):
        last = number == len(portion.batches)
        training.model.set_is_last_backward(last)
        training.model.set_requires_all_reduce(last)
        if spec.accumulate == "unsharded":
            training.model.set_requires_gradient_sync(last)
        began = time.perf_counter()
        batch = future.result()
        waited_s += time.perf_counter() - began
        loss = training.model(**attend(batch.on(world.device), spec), divisor=tokens)
        loss.backward()
        total += loss.detach()
    return total, waited_s


def _clip(training: Training) -> torch.Tensor:
    """Clip the gradient; return its norm before that, the same on all ranks."""
    limit = training.spec.clip_norm or math.inf
    norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), limit)
    # Each rank holds a part of the norm: putting it together is collective.
    whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return whole.to(training.world.device)
