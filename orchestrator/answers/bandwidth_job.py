"""The bandwidth sweep as a short job with the resources of another one: submit it, wait, read it.

It is a run as any other (fsdpq's own machinery brings it through a preemption), only its program is
`orchestrator.preflight.sweep`. Its directory stays: NCCL's logs are in it.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import guard, interrupts
from orchestrator.answers import status
from orchestrator.bandwidth import Record, find
from orchestrator.bandwidth.finding import gbs_text, size_text
from orchestrator.decide import Over
from orchestrator.errors import RunError, SchedulerError, SpecError, SubmitError
from orchestrator.launchplan.target import target
from orchestrator.profile import SiteProfile
from orchestrator.runstore import facts
from orchestrator.spec.code import CodeSpec
from orchestrator.spec.hang import HangSpec
from orchestrator.spec.job import JobSpec, NoticeSpec, RestartSpec
from orchestrator.spec.restart import BudgetSpec
from orchestrator.submitting import launch
from orchestrator.submitting.described import read
from orchestrator.submitting.launch import Launch
from orchestrator.watching import control, watch
from orchestrator.watching.watch import Outcome

MODULE = "orchestrator.preflight.sweep"
# For the prolog, imports, rendezvous and communicators, beside the time that is measured for.
_AROUND_S = 420
_LEAD_S = 20
_EVERY_S = 2.0
_TELL_S = 30.0
# What fails once is to be looked at, not to be tried again.
_RESTART = RestartSpec(
    max_no_progress=1,
    budgets=BudgetSpec(
        worker_error=0,
        hang=0,
        time_limit=0,
        gone=1,
        network_error=0,
        gpu_failure=1,
        launch_failure=1,
        disk_full=0,
        node_check=1,
    ),
)


def prepare(
    job: Path, *, runs: Path, site: str | None, overrides: Sequence[str], nodes: int | None
) -> Launch:
    """Return the run that measures what the job file ``job`` would train on; see `launch.prepare`.

    Args:
        job: The job file.
        runs: Where the run directories are.
        site: The site instead of the job's; None leaves it.
        overrides: Such as ``partition=gpu``.
        nodes: How many, instead of the job's; None leaves it.

    Raises:
        InputError: The job file, the site profile or an override cannot be used.
    """
    more = [f"nodes={nodes}"] if nodes is not None else []
    described = read(job, site=site, overrides=[*overrides, *more])
    spec, profile = described.spec, described.profile
    try:
        measuring = _measuring(spec, profile, name=_free_name(runs, spec.name))
    except SpecError as problem:
        raise SpecError(f"{job}: {problem}") from None
    words = program(spec, profile)
    described = replace(described, spec=measuring)
    prepared = launch.ready(described, runs=runs, program=words)
    if prepared.plan.world_size < 2:
        raise SpecError(
            f"{job}: one rank alone has nobody to talk to; ask for more with nodes or gpus_per_node"
        )
    return prepared


def _free_name(runs: Path, job: str) -> str:
    """Return a name that no run has yet."""

    def names() -> Iterator[str]:
        first = f"{job[:48]}-bandwidth"
        yield first
        yield from (f"{first}-{number}" for number in range(2, 10_000))

    return next(name for name in names() if not (runs / name).exists())


def _measuring(spec: JobSpec, profile: SiteProfile, *, name: str) -> JobSpec:
    """Return the job with another program, and nothing that only training needs."""
    slurm = profile.scheduler == "slurm"
    return spec.model_copy(
        update={
            "name": name,
            "train": None,
            "script": None,
            "args": (),
            "elastic": None,
            "code": CodeSpec(),
            "hang": HangSpec(enabled=False),
            "restart": _RESTART,
            "preflight": spec.preflight.model_copy(update={"bandwidth": False}),
            "notice": NoticeSpec(
                signal=spec.notice.signal, lead_s=min(spec.notice.lead_s, _LEAD_S)
            ),
            "time_limit": _limit_s(spec, profile) if slurm else spec.time_limit,
        }
    )


def _limit_s(spec: JobSpec, profile: SiteProfile) -> int:
    """Return a time limit that lets a job start in the gaps of the queue, in seconds.

    Raises:
        SpecError: The site does not have what the job asks for.
    """
    terms = target(spec, profile).terms
    usual = max(spec.preflight.bandwidth_timeout_s + _AROUND_S, terms.min_time_limit or 0)
    return min([usual, *(cap for cap in (spec.time_limit, terms.time_limit) if cap)])


def program(spec: JobSpec, profile: SiteProfile) -> tuple[str, ...]:
    """Return what torchrun starts."""
    asked, promised = spec.preflight, profile.fabric.busbw_gbs if spec.nodes > 1 else None
    words = ["--budget", str(asked.bandwidth_timeout_s), "--ratio", str(asked.bandwidth_ratio)]
    if promised is not None:
        words += ["--expected", str(promised)]
    return ("-m", MODULE, *words)


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it.

    Attributes:
        record: None where nothing was measured.
        trouble: Why the sweep did not come to its end; "" if it did.
    """

    record: Record | None
    trouble: str = ""


def measure(prepared: Launch, *, show: Callable[[str], None]) -> Measured:
    """Submit the job, stay until it is over, and return what it measured.

    Args:
        prepared: The run.
        show: Hears what is going on, whenever that has changed, and now and then if it has not.

    Raises:
        SubmitError: The scheduler refused it.
        KeyboardInterrupt: The user did not want to wait, or the terminal is gone; the job is
            cancelled.
    """
    layout, submitted = prepared.layout, False
    cancel, env = _cancel_argv(prepared), os.environ
    with interrupts.as_exceptions(), guard.unless_dismissed(cancel, env=env) as left:
        try:
            show(f"run {layout.name}: submitting it, for {_nodes(prepared)}")
            job_id = launch.submit(prepared)
            submitted = True
            show(f"run {layout.name}: job {job_id}")
            measured = _wait(prepared, show)
        except BaseException as problem:  # also a terminal that takes no more text
            refused = not submitted and isinstance(problem, SubmitError | RunError)
            # A job that was being submitted may turn up only now: that is left to the guard.
            if refused or (_cancelled(prepared, show) and submitted):
                left.dismiss()
            raise
        left.dismiss()
    return measured


def _cancel_argv(prepared: Launch) -> list[str]:
    layout = prepared.layout
    name, runs = layout.name, str(layout.root.parent)
    return [sys.executable, "-m", "orchestrator", "cancel", "--now", "--runs", runs, "--", name]


def _nodes(prepared: Launch) -> str:
    count = prepared.plan.nodes
    return "1 node" if count == 1 else f"{count} nodes"


def _cancelled(prepared: Launch, show: Callable[[str], None]) -> bool:
    """Cancel the run, and return whether that was done."""
    layout = prepared.layout
    if not layout.root.exists():
        return False
    try:
        said, done = control.cancel(layout, prepared.plan, now=True), True
    except SchedulerError as problem:
        said, done = f"{layout.name}: cancelling it is tried again: {problem}", False
    except RunError:  # it is finished
        return True
    with suppress(OSError):
        show(said)
    return done


def _wait(prepared: Launch, show: Callable[[str], None]) -> Measured:
    layout, said = prepared.layout, _Said(show)

    def look(outcomes: list[Outcome]) -> bool:
        said.say(_progress(outcomes[0], facts.bandwidth(layout)))
        return isinstance(outcomes[0].action, Over) and not outcomes[0].note

    watch.loop(lambda: [(layout, prepared.plan)], every_s=_EVERY_S, show=look)
    record = facts.bandwidth(layout)
    if layout.finished.exists():
        missing = "" if record else "the job came to its end and left no figures"
        return Measured(record, missing)
    sight, action = watch.look([(layout, prepared.plan)])[0]
    rows = status.of(sight, action, whole=True).attempts
    # What is to be said of the end, without advice on how to start a training again.
    why = (rows[-1]["why"] if rows else None) or action.why
    return Measured(record, f"{why}; see `fsdpq logs {layout.name}`")


class _Said:
    """Says what has changed, and again what has not for a while."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._text = ""
        self._since = self._told = time.monotonic()

    def say(self, text: str) -> None:
        """Say ``text`` if it is time to."""
        now = time.monotonic()
        if text != self._text:
            self._text, self._since, self._told = text, now, now
            self._show(text)
        elif now - self._told >= _TELL_S:
            self._told = now
            self._show(f"{text} ({now - self._since:.0f} s so far; Ctrl-C cancels the job)")


def _progress(outcome: Outcome, record: Record | None) -> str:
    if record is not None and record.rounds:
        return f"pairs of nodes: round {record.rounds} of {record.rounds_total}"
    if record is not None and record.measurements:
        newest = find(record).largest or record.measurements[-1]
        return f"{size_text(newest.size)}: {gbs_text(newest.bus_gbs)} GB/s ({newest.collective})"
    return outcome.note or outcome.action.why
