"""Do what was decided, once: claim it, look again, record it, tell the scheduler."""

from dataclasses import replace

from orchestrator.decide import (
    Action,
    CancelJobs,
    Exclude,
    Over,
    ProveNetwork,
    Replace,
    Restart,
    StartNow,
    TellStop,
    decide,
    turn,
)
from orchestrator.errors import (
    ActionError,
    FsdpqError,
    SchedulerError,
)
from orchestrator.fabric import record
from orchestrator.judging.classify import Verdict, past_verdict
from orchestrator.nodelist import expand
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import claims, facts, store
from orchestrator.runstore.history import history
from orchestrator.runstore.sight import Sight
from orchestrator.scheduler import JobState, Scheduler
from orchestrator.submitting.starting import affordable, own_exclusions, resubmit
from orchestrator.watching import observe


def catch_up(sight: Sight) -> Sight:
    """Write down what is seen and not yet in the run's events; return the sight with it.

    To be done before the decision: a job that is put back has to leave out the node that the
    attempt before it speaks against, and its delay must not be taken before that.

    Raises:
        RunError: The run directory cannot be read or written.
        OSError: The same.
    """
    if not sight.read:
        return sight
    _adopt(sight)
    if not _judge(sight):
        return sight
    return replace(sight, past=history(store.events(sight.layout)))


def act(sight: Sight, action: Action, scheduler: Scheduler) -> str:
    """Do ``action`` and return a note on it.

    A scheduler that refuses, or a file system that does, is noted: other runs want looking after.
    """
    try:
        return _do(sight, action, scheduler)
    except (FsdpqError, OSError) as error:
        return str(error)


def _do(sight: Sight, action: Action, scheduler: Scheduler) -> str:
    match action:
        case StartNow():
            facts = {"job_id": action.job_id, "restart": action.restart}
            store.append(sight.layout, "start now", **facts)
            scheduler.start_now(action.job_id)
        case CancelJobs(job_ids=job_ids):
            for job_id in job_ids:
                scheduler.cancel(job_id)
            store.append(sight.layout, "ended jobs", job_ids=job_ids, why=action.why)
        case Exclude():
            return _exclude(sight, action, scheduler)
        case ProveNetwork():
            return _prove(sight, action)
        case TellStop():
            store.append(sight.layout, "told to stop", attempt=action.attempt, why=action.why)
            scheduler.notify(action.job_id, signal=sight.plan.notice_signal)
            return action.why
        case Over(record=True) | Restart() | Replace():
            return _claimed(sight, action, scheduler)
    return ""


def _adopt(sight: Sight) -> None:
    """Record a job that turned up after a submission without an answer, or was started by hand.

    One that has ended counts only while an answer is awaited: Slurm 22.05 keeps a failed record of
    what sbatch was refused.
    """
    known, awaited = sight.past.submitted, sight.past.asked_at is not None
    for job in sight.seen.jobs or ():
        found = job.in_queue and job.state is not JobState.UNKNOWN and job.job_id not in known
        if found and (awaited or not job.state.ended):
            store.append(sight.layout, "submitted", job_id=job.job_id, how="found in the queue")


def _judge(sight: Sight) -> bool:
    """Write down why earlier attempts ended, for those that nobody has judged yet.

    Slurm and the batch shell put jobs back without asking; what speaks against a node is kept.
    """
    newest = sight.seen.attempt
    if newest is None:
        return False
    last = newest.number if _waits(sight) else newest.number - 1
    numbers = store.attempt_numbers(sight.layout)
    new = [n for n in numbers if n <= last and n not in sight.past.judged][-8:]
    for number in new:
        attempt = facts.one(sight.layout, number)
        if attempt is not None:
            verdict = past_verdict(facts.ended(sight.layout, attempt))
            _record_attempt(sight.layout, number, verdict)
    return bool(new)


def _waits(sight: Sight) -> bool:
    """Return whether the newest attempt is over: its job waits to be started again."""
    jobs = sight.seen.jobs or ()
    return any(job.in_queue and job.state is JobState.PENDING for job in jobs[:1])


def _record_attempt(layout: RunLayout, number: int, verdict: Verdict) -> None:
    told = {"cause": verdict.cause, "why": verdict.why, "node": verdict.node}
    store.append(layout, "attempt ended", attempt=number, suspects=list(verdict.suspects), **told)


def _claimed(sight: Sight, action: Over | Restart | Replace, scheduler: Scheduler) -> str:
    """Act on the end of a job as the only process that does, and let go of it afterwards.

    A process that looks after many runs lives on, and must not keep `fsdpq requeue` away.
    """
    try:
        if objection := _objection(sight, action, scheduler):
            return objection
        match action:
            case Over():
                return _record_end(sight, action, scheduler)
            case Restart():
                return _restart(sight, action, scheduler)
            case Replace():
                return _replace(sight, action, scheduler)
    finally:
        claims.release(sight.layout, turn(sight.past))


def _objection(sight: Sight, action: Action, scheduler: Scheduler) -> str:
    """Return why this process may not act on the end of a job; "" if it may.

    Between looking and claiming another one may have restarted the run and gone.
    """
    if not claims.claim(sight.layout, turn(sight.past)):
        return "another watcher is at it"
    again = observe.look([(sight.layout, sight.plan)], scheduler)[0]
    same = _same(decide(again.seen, again.past, again.policy), action)
    return "" if same else "it has changed since it was looked at"


def _same(now: Action, before: Action) -> bool:
    """Return whether two decisions are one, but for their words: those may hold a clock."""
    match now, before:
        case Restart(), Restart():
            return (now.key, now.job_id, now.cause) == (before.key, before.job_id, before.cause)
        case Replace(), Replace():
            return (now.key, now.nodes, now.requeue) == (before.key, before.nodes, before.requeue)
        case Over(), Over():
            return (now.state, now.cause, now.job_id) == (before.state, before.cause, before.job_id)
    return False


def _record_end(sight: Sight, action: Over, scheduler: Scheduler) -> str:
    """Write down that the run is over."""
    if action.state == "cancelled":
        store.mark_cancelled(sight.layout, by=action.why)
        return ""
    _end_attempt(sight, Verdict(action.cause, action.why))
    store.append(sight.layout, "gave up", cause=action.cause, why=action.why)
    if action.job_id:
        scheduler.cancel(action.job_id)
    return ""


def _end_attempt(sight: Sight, verdict: Verdict) -> None:
    attempt = sight.seen.attempt
    if attempt is not None and attempt.number not in sight.past.judged:
        _record_attempt(sight.layout, attempt.number, verdict)


def _restart(sight: Sight, action: Restart, scheduler: Scheduler) -> str:
    """Restart the run: requeue its job, or submit another."""
    verdict = action.verdict
    _end_attempt(sight, verdict)
    if action.micro_batch is not None:
        store.override(sight.layout, micro_batch=action.micro_batch)
    store.append(
        sight.layout,
        "restart",
        cause=action.cause,
        why=action.why,
        checkpoint_step=sight.seen.checkpoint_step,
        attempt=sight.seen.attempt.number if sight.seen.attempt else None,
        how="requeue" if action.job_id else "resubmit",
        signature=verdict.signature,
        micro_batch=action.micro_batch,
        key=action.key,
    )
    if action.job_id is not None and _requeued(sight.layout, action.job_id, scheduler):
        return f"requeued job {action.job_id}"
    return _resubmitted(sight, action.exclude, action.nodes, scheduler)


def _replace(sight: Sight, action: Replace, scheduler: Scheduler) -> str:
    """End a job and start another in its place; or put the same one back, where that will do."""
    layout, attempt = sight.layout, sight.seen.attempt
    if action.requeue:
        _end_attempt(sight, Verdict(action.cause, action.why, suspects=action.suspects))
    restart = {
        "cause": action.cause,
        "why": action.why,
        "checkpoint_step": sight.seen.checkpoint_step,
        "attempt": attempt.number if attempt and action.requeue else None,
        "signature": action.signature,
        "key": action.key,
    }
    store.append(layout, "restart", **restart, how="requeue" if action.requeue else "replace")
    if action.requeue and _requeued(layout, action.job_id, scheduler):
        return f"requeued job {action.job_id}"
    # From here on Slurm may call it cancelled; this says that nobody gave the run up.
    stopping = {"job_id": action.job_id, "cause": action.cause, "why": action.why}
    store.append(layout, "stopping", **stopping, nodes=action.nodes)
    _stop(layout, action.job_id, scheduler)
    if action.requeue:
        return f"ended job {action.job_id}"
    return _resubmitted(sight, action.exclude, action.nodes, scheduler)


def _stop(layout: RunLayout, job_id: str, scheduler: Scheduler) -> None:
    """End a job of which it is written down that a watcher does; take that back if it fails."""
    try:
        scheduler.cancel(job_id)
    except SchedulerError:
        store.append(layout, "not stopped", job_id=job_id)
        raise


def _requeued(layout: RunLayout, job_id: str, scheduler: Scheduler) -> bool:
    try:
        scheduler.requeue(job_id)
    except ActionError as error:
        store.append(layout, "refused", what="requeue", job_id=job_id, why=str(error))
        return False
    return True


def _exclude(sight: Sight, action: Exclude, scheduler: Scheduler) -> str:
    told = affordable(sight.plan, action.nodes, scheduler, nodes=None)
    try:
        scheduler.exclude(action.job_id, (*own_exclusions(sight.plan), *told))
    except ActionError as error:
        why = str(error)
        store.append(sight.layout, "refused", what="exclude", job_id=action.job_id, why=why)
        return why
    said = {"job_id": action.job_id, "nodes": list(action.nodes), "told": list(told)}
    said |= {"let_go": list(action.let_go)} if action.let_go else {}
    store.append(sight.layout, "excluded", **said, why=action.why)
    return action.why


def _prove(sight: Sight, action: ProveNetwork) -> str:
    """Write down what network an attempt uses, or that its logs do not tell yet."""
    files, plan = sight.layout.attempt(action.attempt), sight.plan
    attempt = sight.seen.attempt
    nodes = len(expand(attempt.nodes)) if attempt else 0
    found = record.look(files, plan.fabric, nodes=nodes or plan.nodes)
    network = record.of_diagnosis(found, require=plan.policy.require_rdma, at=sight.seen.now)
    if network.verdict == "unknown":
        store.append(sight.layout, "looked at network", attempt=action.attempt)
        return ""
    record.write(files, found, network)
    return network.why


def _resubmitted(
    sight: Sight, suspects: tuple[str, ...], nodes: int | None, scheduler: Scheduler
) -> str:
    return f"submitted job {resubmit(sight, suspects, scheduler, nodes=nodes)}"
