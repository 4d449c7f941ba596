"""The training loop: build, resume, step, save, stop when all ranks agree.

Legend: B sequences of a micro-batch, L tokens of a sequence, V words of the vocabulary.
"""

import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from orchestrator.runtime import Notice, Run
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.corpus import Corpus, open_corpus
from orchestrator.trainer.metrics import MetricsLog
from orchestrator.trainer.model import build_model
from orchestrator.trainer.randomness import seed_all
from orchestrator.trainer.sampler import Ids, Sampler, rank_positions
from orchestrator.trainer.saver import Saver
from orchestrator.trainer.schedule import lr_factor
from orchestrator.trainer.state import AppState
from orchestrator.trainer.world import World, connect, fix_arithmetic, leave, shorten_timeout


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


def train(run: Run, spec: TrainSpec) -> None:
    """Train until the last step is done or all ranks agree to stop.

    Raises:
        FsdpqError: The run cannot go on; says why and what to do.
    """
    fix_arithmetic(spec)
    corpus = open_corpus(spec.data.text_files, seq_len=spec.data.seq_len)
    world = connect(run.env, spec)
    # A notice may have come while this was starting; then each second counts.
    if notice := _notice(run, spec):
        run.stopped(step=0, reason=f"{notice.signal} during start-up")
    else:
        _train(run, spec, world, corpus)
    leave(world)


def _train(run: Run, spec: TrainSpec, world: World, corpus: Corpus) -> None:
    checkpoint = run.resume(
        verify=spec.checkpoint.verify, required=spec.checkpoint.resume == "required"
    )
    training = build(spec, world, corpus, fresh=checkpoint is None)
    saver = Saver(run, training.state, spec.checkpoint)
    if checkpoint is not None:
        saver.load(checkpoint)
    notice = _loop(run, training, saver)
    if training.state.step:  # initial weights can be drawn again, they need no checkpoint
        saver.save()
    if notice:
        run.stopped(step=training.state.step, reason=f"{notice.signal} ({notice.origin})")
    else:
        run.finished(step=training.state.step)


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


def _loop(run: Run, training: Training, saver: Saver) -> Notice | None:
    """Train step after step; return the notice that ended it, None after the last step."""
    spec, state = training.spec, training.state
    log = MetricsLog(run.env.run.metrics) if run.env.rank == 0 else None
    first = state.step
    notice = _notice(run, spec)
    while notice is None and state.step < spec.steps:
        started, position = time.perf_counter(), state.position
        result = train_step(training)
        took = time.perf_counter() - started
        run.heartbeat(state.step)
        if log:
            _log(log, run, training, result, position=position, took=took)
        if state.step == first + 1:
            dist.barrier(training.world.checkpoint_group)
            shorten_timeout(spec)
        notice = _notice(run, spec)
        if notice is None and state.step % spec.checkpoint.every_steps == 0:
            saver.save()
    return notice if state.step < spec.steps else None


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


def _notice(run: Run, spec: TrainSpec) -> Notice | None:
    wait = spec.timeouts_s
    return run.should_stop(timeout_s=wait.vote, term_timeout_s=wait.term_vote)


def _log(
    log: MetricsLog, run: Run, training: Training, result: Result, *, position: int, took: float
) -> None:
    spec = training.spec
    log.write(
        attempt=run.env.attempt,
        step=training.state.step,
        loss=result.loss,
        grad_norm=result.grad_norm,
        lr=result.lr,
        tokens_per_s=spec.global_batch * spec.data.seq_len / took,
        step_s=took,
        samples=[position, spec.global_batch],
        world_size=training.world.size,
        at=time.time(),
    )
