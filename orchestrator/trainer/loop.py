"""An attempt of the trainer: resume, take steps, save, say how it ended."""

from orchestrator.checkpoint import Checkpoint
from orchestrator.runtime import Run
from orchestrator.spec.train import TrainSpec
from orchestrator.trainer.attending import check_documents
from orchestrator.trainer.caches import load_caches
from orchestrator.trainer.corpus import Corpus
from orchestrator.trainer.evaluation import Evaluator
from orchestrator.trainer.garbage import collect_seldom
from orchestrator.trainer.local_copy import LocalCopy, local_copy_of
from orchestrator.trainer.local_reader import holder
from orchestrator.trainer.metrics import Console
from orchestrator.trainer.mirror import Mirror
from orchestrator.trainer.saver import Saver
from orchestrator.trainer.sources import NoticeError, open_data, remember, what_changed
from orchestrator.trainer.startup import Startup, process_started_at
from orchestrator.trainer.steps import Steps, vote
from orchestrator.trainer.training import Training, build
from orchestrator.trainer.world import World, connect, fix_arithmetic, leave


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
    if notice := vote(run, spec):
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
        notice = Steps(run, training, saver, evaluator, console, startup).take(after=collect)
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
