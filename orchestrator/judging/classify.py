"""Why an attempt ended: from what the workers wrote and the scheduler's record. Pure.

The order of belief: what the user and the batch shell say on purpose, Slurm's word on the job, then
the logs' findings, from what names a broken part to what only echoes another rank's end.
"""

import re
from dataclasses import dataclass, replace

from orchestrator.evidence import errors
from orchestrator.nodelist import expand, node_of
from orchestrator.rundir.attempt import Attempt, Finding, Weight
from orchestrator.rundir.cause import Cause
from orchestrator.scheduler import JobRecord, JobState

__all__ = ["LAUNCH_SIGNAL", "Cause", "Verdict", "classify", "of_attempt", "past_verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why an attempt ended.

    Attributes:
        why: One sentence; names rank, node and step where they are known.
        advice: What to do about it, a sentence; "" where there is nothing to be done.
        suspects: The nodes that the evidence speaks against, as Slurm spells them; empty where it
            was the program.
        node: The node of the rank that failed first, "" where none is known. Weaker than
            ``suspects``: only that it comes again speaks against it.
        signature: The same for the same error at the same step, whatever the rank; "" for none.
    """

    cause: Cause
    why: str
    advice: str = ""
    suspects: tuple[str, ...] = ()
    node: str = ""
    signature: str = ""


def classify(job: JobRecord | None, attempt: Attempt | None) -> Verdict:
    """Return why a job ended.

    From evidence: what the workers wrote, then the scheduler's record. Never from the clock.
    """
    if job is not None and job.state is JobState.CANCELLED:
        # Accounting has the user, "CANCELLED by 1000"; the queue's reason is an older one's.
        told = job.reason.startswith("CANCELLED by")
        by = job.reason.removeprefix("CANCELLED ") if told else "by scancel"
        return Verdict(Cause.CANCELLED, f"job {job.job_id} was cancelled {by}; nothing restarts it")
    if attempt is not None and attempt.outcome == "no_checkpoint":
        return Verdict(Cause.CHECKPOINT, attempt.reason)
    if attempt is not None and (little := too_little(attempt)):
        return little
    if job is None and attempt is not None and attempt.action == "none" and attempt.noticed:
        return _forgotten(attempt)
    if attempt is not None and attempt.action == "stop":
        return Verdict(Cause.NO_PROGRESS, f"{attempt.why}; see notice.lead_s and the save time")
    if attempt is not None and attempt.outcome == "stopped":
        return Verdict(Cause.NOTICE, _stopped(attempt))
    # Slurm's own word goes before the errors of ranks: those of survivors follow from it.
    if job is not None and job.state in _RECORDS:
        return _recorded(job, _RECORDS[job.state], attempt)
    return (of_attempt(attempt) if attempt else None) or _from_record(job, attempt)


def _stopped(attempt: Attempt) -> str:
    newer = attempt.saved_step is not None and attempt.saved_step > (attempt.resumed or 0)
    saved = "and saved" if newer else "and had nothing new to save"
    return f"attempt {attempt.number} stopped for a notice {saved}"


def past_verdict(attempt: Attempt) -> Verdict:
    """Return why an attempt ended that others have followed: the scheduler's record is gone."""
    if told := too_little(attempt):
        return told
    which, gone = f"attempt {attempt.number}", attempt.reclaimed
    if attempt.outcome == "stopped":
        return Verdict(Cause.NOTICE, _stopped(attempt), suspects=gone)
    if told := of_attempt(attempt):
        return told
    if gone:
        why = f"{which} lost {', '.join(gone)}, which the cloud took back"
        return Verdict(Cause.PREEMPTED, why, suspects=gone)
    return Verdict(Cause.GONE, f"{which} ended without a word")


def too_little(attempt: Attempt) -> Verdict | None:
    """Return that an attempt was stopped because its network is less than the job requires.

    Where it is the fault of some nodes alone, others may do; else nothing but a mended network.
    """
    network = attempt.network
    if network is None or not network.stop:
        return None
    nodes = expand(attempt.nodes)
    known = dict.fromkeys(node_of(host, nodes) for host in network.hosts)
    suspects = tuple(node for node in known if node)
    why = f"{network.why} (require_rdma)"
    if suspects and len(suspects) < len(nodes):
        return Verdict(Cause.NODE_CHECK, why, network.advice, suspects)
    return Verdict(Cause.NO_RDMA, why, network.advice)


def of_attempt(attempt: Attempt) -> Verdict | None:
    """Return why an attempt ended as far as its own files tell; None where they do not."""
    if attempt.outcome == "no_checkpoint":
        return Verdict(Cause.CHECKPOINT, attempt.reason)
    if told := _slurms_word(attempt):
        return told
    findings = _all_findings(attempt)
    return _verdict(findings[0], findings, attempt) if findings else None


def _slurms_word(attempt: Attempt) -> Verdict | None:
    """Return what Slurm wrote into the job's own log about its end."""
    told = [f for f in attempt.findings if f.weight is Weight.SLURM]
    return _verdict(told[0], told, attempt) if told else None


def _all_findings(attempt: Attempt) -> list[Finding]:
    """Return the findings of an attempt whose logs were read, or its error file's alone."""
    failed = [f for f in attempt.findings if f.cause is not Cause.NOTICE]
    if failed or attempt.error is None:
        return failed
    error = attempt.error
    node = node_of(error.node, expand(attempt.nodes))
    found = errors.read(error.exception)
    return [
        replace(
            found,
            rank=error.rank,
            node=node or error.node,
            step=error.step,
            suspect=found.suspect and bool(node),
        )
    ]


def _verdict(first: Finding, findings: list[Finding], attempt: Attempt) -> Verdict:
    first = _settled(first, findings, attempt)
    suspects = _suspects(first, findings, attempt)
    return Verdict(
        first.cause,
        _why(first),
        first.advice,
        suspects,
        node=first.node if first.node in expand(attempt.nodes) else "",
        signature=_signature(first, attempt),
    )


def _settled(first: Finding, findings: list[Finding], attempt: Attempt) -> Finding:
    """Give a finding another cause where the rest of the evidence says so."""
    if first.cause is Cause.CONFIGURATION and first.kind in _ONLY_AT_START and _moved(attempt):
        # What worked for a while is no mistake in the job.
        return replace(first, cause=Cause.WORKER_ERROR)
    if first.kind == "no-gpu" and _everywhere(first, findings, attempt):
        advice = "No node has one for this job: look at gpus_per_node, gpu_request and the driver"
        return replace(first, cause=Cause.CONFIGURATION, suspect=False, advice=advice)
    return first


# Mistakes that show at the start; later they are a node's, or a file system's.
_ONLY_AT_START = frozenset({"module", "import", "permission", "interpreter", "model-access"})


def _moved(attempt: Attempt) -> bool:
    done = attempt.last_step
    return done is not None and done > (attempt.resumed or 0)


def _everywhere(first: Finding, findings: list[Finding], attempt: Attempt) -> bool:
    """Return whether all of several nodes say the same: then it is none of them."""
    nodes = set(expand(attempt.nodes))
    return len(nodes) > 1 and {f.node for f in findings if f.kind == first.kind} >= nodes


def _suspects(first: Finding, findings: list[Finding], attempt: Attempt) -> tuple[str, ...]:
    """Return the nodes that the evidence speaks against; never all of several."""
    named = [first, *(f for f in findings if f.weight <= Weight.ROOT)]
    found = dict.fromkeys(f.node for f in named if f.suspect)
    nodes = set(expand(attempt.nodes))
    if len(nodes) > 1 and nodes <= set(found):
        return ()
    return tuple(found)


def _why(finding: Finding) -> str:
    """Return one sentence: which rank, on which node, what, after which step."""
    who = "" if finding.rank is None else f"rank {finding.rank}"
    if who and finding.node:
        who += f" on {finding.node}"
    step = "" if finding.step is None else f" (after step {finding.step})"
    if not who:
        return f"{finding.node}: {finding.what}" if finding.node else finding.what
    if finding.weight is Weight.ECHO:
        return f"{who} lost another rank, and no log says why that one ended: {finding.what}{step}"
    verb = "" if finding.kind in ("signal", "exit") else " failed:"
    return f"{who}{verb} {finding.what}{step}"


_CHANGING = re.compile(r"0x[0-9a-fA-F]+|(?:/[^\s/:'\"]+)+/?|\d+(?:\.\d+)?")


def _signature(finding: Finding, attempt: Attempt) -> str:
    """Return a text that is the same for the same error at the same step.

    Numbers, addresses and paths are left out: they differ between attempts and ranks.
    """
    step = finding.step if finding.step is not None else attempt.last_step
    text = _CHANGING.sub("#", finding.what)
    return f"{finding.kind}: {text} @ {'start' if step is None else step}"


# How slurmstepd says that it could not set up the job's output (22.05: "0:53").
LAUNCH_SIGNAL = 53

_RECORDS = {
    JobState.PREEMPTED: Cause.PREEMPTED,
    JobState.TIMEOUT: Cause.TIME_LIMIT,
    JobState.DEADLINE: Cause.TIME_LIMIT,
    JobState.NODE_FAIL: Cause.NODE_FAILURE,
    JobState.BOOT_FAIL: Cause.NODE_FAILURE,
    JobState.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
    JobState.LAUNCH_FAILED: Cause.LAUNCH,
    JobState.RECONFIG_FAIL: Cause.LAUNCH,
}


def _recorded(job: JobRecord, cause: Cause, attempt: Attempt | None) -> Verdict:
    """Return Slurm's word on the end, with what the logs know of where."""
    why = f"job {job.job_id} ended as {job.state}"
    same = [f for f in attempt.findings if f.cause is cause] if attempt else []
    if attempt is None or not same:
        return Verdict(cause, f"{why} before it could save", _ADVICE.get(cause, ""))
    found = _verdict(same[0], same, attempt)
    return replace(found, why=f"{why}: {found.why}")


_ADVICE = {
    Cause.OUT_OF_MEMORY: "Ask for more memory (mem), or use fewer data workers",
    Cause.TIME_LIMIT: "A notice before the limit (notice.lead_s) lets the run save",
}
# Words of squeue for a job whose script Slurm could not start.
_NOT_STARTED = ("JobLaunchFailure", "launch failed", "launch_failed", "Prolog")


def _from_record(job: JobRecord | None, attempt: Attempt | None) -> Verdict:
    if job is None:
        return Verdict(Cause.GONE, "the scheduler has no record of a job of this run")
    ended = f"job {job.job_id} ended as {job.state}"
    code = f", exit code {job.exit_code}" + (f", signal {job.signal}" if job.signal else "")
    # The batch shell is started on the first node.
    head = next(iter(expand(job.nodes)), "")
    where = f" on {head}" if head else ""
    if job.signal == LAUNCH_SIGNAL:
        why = f"{ended}{code}{where}: Slurm could not open batch.log; is the run directory there?"
        return Verdict(Cause.LAUNCH, why, _SPOOL, node=head, signature="launch: batch.log")
    if any(word in job.reason for word in _NOT_STARTED):
        why = f"{ended}{code}{where} ({job.reason}): Slurm could not start the script"
        return Verdict(Cause.LAUNCH, why, _SPOOL, node=head, signature=f"launch: {job.reason}")
    if attempt is None:
        why = f"{ended}{code} before the script started; see batch.log"
        return Verdict(Cause.WORKER_ERROR, why, node=head)
    why = f"{ended}{code}, and no rank left an error; see `fsdpq logs`"
    return Verdict(Cause.WORKER_ERROR, why)


_SPOOL = "If it comes again on that node, restart without it"


def _forgotten(attempt: Attempt) -> Verdict:
    """Return why a job that heard a notice and was not put back is not restarted either.

    scancel, the time limit and a lost node all look like this once the scheduler has forgotten
    the job, and the first of them is final.
    """
    why = f"{attempt.why}, and the scheduler no longer says whether its user cancelled it"
    return Verdict(Cause.NO_PROGRESS, f"{why}. If nobody did: `fsdpq requeue`")
