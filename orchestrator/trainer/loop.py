"""The training loop: resume, step, save, stop when all ranks agree."""

import time
from collections.abc import Callable
from typing import Any

from orchestrator.checkpoint import Checkpoint
from orchestrator.runtime import Notice, Run
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.attending import check_documents
from orchestrator.trainer.caches import load_caches, save_caches
from orchestrator.trainer.compiling import describe_compilation
from orchestrator.trainer.corpus import Corpus
from orchestrator.trainer.evaluation import Evaluator, describe
from orchestrator.trainer.garbage import collect_seldom
from orchestrator.trainer.local_copy import LocalCopy, local_copy_of
from orchestrator.trainer.local_reader import holder
from orchestrator.trainer.metrics import Console, MetricsLog, finite
from orchestrator.trainer.mirror import Mirror
from orchestrator.trainer.pace import summary
from orchestrator.trainer.saver import Saver
from orchestrator.trainer.sources import NoticeError, open_data, remember, what_changed
from orchestrator.trainer.startup import Startup, process_started_at
from orchestrator.trainer.training import Result, Training, build, train_step
from orchestrator.trainer.utilization import Meter
from orchestrator.trainer.world import World, connect, fix_arithmetic, leave, meet, shorten_timeout


def train(run: Run, spec: TrainSpec) -> None:
    """Train until the last step is done or all ranks agree to stop.

    Raises:
        FsdpqError: The run cannot go on; says why and what to do.
    """
    startup = Startup(process_started_at())
    startup.mark("import")
    fix_arithmetic(spec)
    world = connect(run.env, spec)
    startup.mark("connect")
    # A notice may have come while this was starting; then each second counts.
    if notice := _notice(run, spec):
        run.stopped(step=0, reason=f"{notice.signal} during start-up")
    else:
        try:
            _train(run, spec, world, startup)
        except NoticeError as stop:
            run.stopped(step=0, reason=str(stop))
    leave(world)


def _train(run: Run, spec: TrainSpec, world: World, startup: Startup) -> None:
    console = Console(quiet=run.env.rank != 0)
    corpus, held_out = open_data(run, spec, world, console)
    startup.mark("data")
    training, saver = _prepare(run, spec, world, corpus, console, startup)
    evaluator = Evaluator.of(training, held_out)
    mirror = Mirror(run, spec)
    with collect_seldom() as collect:
        notice = _loop(run, training, saver, console, startup, collect, evaluator)
    step = training.state.step
    if step:  # initial weights can be drawn again, they need no checkpoint
        saver.save(reason="notice" if notice else "end")
    saver.close()
    if notice:
        run.stopped(step=step, reason=f"{notice.signal} ({notice.origin})")
    else:
        run.finished(step=step)
    saver.forget_copies()
    mirror.close(stopped=notice is not None)
    console.say(f"{'stopped' if notice else 'finished'} after step {step}")


def _prepare(
    run: Run,
    spec: TrainSpec,
    world: World,
    corpus: Corpus,
    console: Console,
    startup: Startup,
) -> tuple[Training, Saver]:
    """Return the training at the step where it goes on."""
    local = local_copy_of(spec.checkpoint.local_copy, run.env)
    checkpoint = _chosen(run, spec, local)
    startup.mark("resume")
    console.say(f"checkpoint chosen: {checkpoint.path if checkpoint else 'none, a new run'}")
    if spec.compile:
        load_caches(run.env)
        startup.mark("caches")
    training = build(spec, world, corpus, fresh=checkpoint is None, say=console.say)
    startup.mark("build")
    patience_s = spec.timeouts_s.checkpoint
    saver = Saver(run, training.state, spec.checkpoint, console, patience_s, local)
    training.state.changes = lambda: what_changed(run, corpus)
    if checkpoint is None and run.env.rank == 0:
        remember(run, corpus)
    if checkpoint is not None:
        with run.busy("loading"):
            saver.load(checkpoint)
        startup.mark("load")
    if spec.data.packing == "documents":
        check_documents(training.model, spec, world)
        startup.mark("check")
    console.say(_describe(run, training))
    return training, saver


def _chosen(run: Run, spec: TrainSpec, local: LocalCopy | None) -> Checkpoint | None:
    return run.resume(
        verify=spec.checkpoint.verify,
        required=spec.checkpoint.resume == "required",
        held=holder(local, first=run.env.local_rank == 0),
    )


def _describe(run: Run, training: Training) -> str:
    return (
        f"attempt {run.env.attempt} starts after step {training.state.step} of"
        f" {training.spec.steps} on {training.world.size} ranks; {training.num_parameters:,}"
        f" parameters, {training.num_trained:,} of them trained,"
        f" {training.corpus.num_samples:,} samples"
    )


def _loop(
    run: Run,
    training: Training,
    saver: Saver,
    console: Console,
    startup: Startup,
    collect: Callable[[int], None],
    evaluator: Evaluator | None = None,
) -> Notice | None:
    """Train step after step; return the notice that ended it, None after the last step."""
    spec, state = training.spec, training.state
    log = MetricsLog(run.env.run.metrics) if run.env.rank == 0 else None
    meter = Meter.of(training.model, spec, training.world)
    first = state.step
    notice = _notice(run, spec)
    if notice is None and evaluator is not None and state.eval_owed:
        _make_up(run, spec, evaluator, console, log)
        startup.mark("evaluation")
        notice = _notice(run, spec)
    ranks: dict[str, Any] = {}
    ended = time.perf_counter()
    while notice is None and state.step < spec.steps:
        started, position = time.perf_counter(), state.position
        result = train_step(training)
        blocked_s, ended = started - ended, time.perf_counter()
        run.heartbeat(state.step)
        line = _line(run, training, result, position=position, step_s=ended - started)
        cost = meter.read(line["tokens_per_s"]) if log else {}
        if evaluator is not None and evaluator.due():
            line.update(_evaluate(run, spec, evaluator, console))
            ended = time.perf_counter()  # its seconds are its own, and block nothing
        if log:
            log.write(**line, **cost, blocked_s=blocked_s, **ranks, **saver.news())
            console.step(line)
        if state.step == first + 1:
            _after_first_step(run, training, saver, console, startup)
        collect(state.step)
        notice = _notice(run, spec, result.own_s)
        ranks = summary(run.own_s, step=state.step)
        if notice is None and state.step < spec.steps and saver.due():
            saver.save_soon(reason="interval")
    # What is still to be measured after the last step is left to the next attempt.
    owed = evaluator is not None and state.eval_owed
    return notice if state.step < spec.steps or owed else None


def _make_up(
    run: Run, spec: TrainSpec, evaluator: Evaluator, console: Console, log: MetricsLog | None
) -> None:
    """Measure what the attempt before had to leave out, with the same weights. Collective."""
    found = _evaluate(run, spec, evaluator, console)
    if log and found:
        log.add(found["eval"]["step"], **found)


def _after_first_step(
    run: Run, training: Training, saver: Saver, console: Console, startup: Startup
) -> None:
    """Do what had to wait for compilation and the first collectives."""
    startup.mark("first_step")
    startup.tell(run, console)
    meet(training.world, training.spec)
    shorten_timeout(training.spec)
    if training.spec.compile:
        save_caches(run.env)
        console.say(describe_compilation())
    saver.prepare()


def _evaluate(run: Run, spec: TrainSpec, evaluator: Evaluator, console: Console) -> dict[str, Any]:
    """Return `eval` for a line of metrics.jsonl; nothing if a notice came. Collective."""
    with run.busy("evaluating"):
        found = evaluator.measure(stop=lambda: _notice(run, spec) is not None)
    if found is None:
        return {}
    console.say(describe(found))
    return {"eval": found}


def _notice(run: Run, spec: TrainSpec, own_s: float | None = None) -> Notice | None:
    wait = spec.timeouts_s
    return run.should_stop(timeout_s=wait.vote, term_timeout_s=wait.term_vote, own_s=own_s)


def _line(
    run: Run, training: Training, result: Result, *, position: int, step_s: float
) -> dict[str, Any]:
    """Return a line of metrics.jsonl. `samples` is the first position and how many follow."""
    spec = training.spec
    return {
        "attempt": run.env.attempt,
        "step": training.state.step,
        "loss": finite(result.loss),
        "grad_norm": finite(result.grad_norm),
        "lr": result.lr,
        "tokens_per_s": spec.global_batch * spec.data.seq_len / step_s,
        "step_s": step_s,
        "samples": [position, spec.global_batch],
        "world_size": training.world.size,
        "data_wait_s": result.data_wait_s,
        "skipped": training.state.skipped,
        "at": time.time(),
    }
