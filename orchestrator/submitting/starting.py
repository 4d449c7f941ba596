"""Submit a run, for the first time or again, and write that down."""

from orchestrator.errors import QueryError, SubmitError
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from orchestrator.runstore.sight import Sight
from orchestrator.scheduler import Scheduler

# sbatch's words for a request that no node is left for.
_NO_NODE_LEFT = ("node configuration is not available", "Node count specification invalid")


def own_exclusions(plan: LaunchPlan) -> tuple[str, ...]:
    """Return the nodes that the job file excludes; an option or an update replaces them."""
    value = dict(plan.directives).get("exclude", "")
    return (value,) if value else ()


def affordable(
    plan: LaunchPlan, suspects: tuple[str, ...], scheduler: Scheduler, *, nodes: int | None
) -> tuple[str, ...]:
    """Return those of ``suspects`` that the partition can do without; the worst come first."""
    if not suspects:
        return ()
    try:
        total = scheduler.node_count(dict(plan.directives).get("partition"))
    except QueryError:
        total = None
    spare = len(suspects) if total is None else max(0, total - (nodes or plan.nodes))
    return suspects[:spare]


def resubmit(
    sight: Sight, suspects: tuple[str, ...], scheduler: Scheduler, *, nodes: int | None = None
) -> str:
    """Submit the run again, without the suspects, or with them if nothing else is left.

    Returns:
        The job id.

    Raises:
        SubmitError: The scheduler refused.
        SubmitUnknownError: No answer; a later pass looks for the job before it submits again.
    """
    exclude = affordable(sight.plan, suspects, scheduler, nodes=nodes)
    try:
        return submit(sight.layout, sight.plan, nodes=nodes, exclude=exclude)
    except SubmitError as error:
        if not exclude or not any(words in error.stderr for words in _NO_NODE_LEFT):
            raise
    return submit(sight.layout, sight.plan, nodes=nodes)


def submit(
    layout: RunLayout,
    plan: LaunchPlan,
    *,
    nodes: int | None = None,
    exclude: tuple[str, ...] = (),
) -> str:
    """Submit the run's script, record it and return the job id.

    Args:
        layout: The run.
        plan: Its plan.
        nodes: How many nodes the job has; None for as many as the plan says.
        exclude: Nodes that it must not get, besides those of the job file.

    Raises:
        SubmitError: The scheduler refused.
        SubmitUnknownError: No answer; a later pass looks for the job before it submits again.
    """
    store.append(layout, "submitting", nodes=nodes, exclude=list(exclude))
    return start(layout, plan, nodes=nodes, exclude=exclude)


def start(
    layout: RunLayout,
    plan: LaunchPlan,
    *,
    nodes: int | None = None,
    exclude: tuple[str, ...] = (),
) -> str:
    """Submit as `submit` does, for a run whose events say already that this is under way."""
    # submitit costs 90 ms to import, and most commands do without it.
    from orchestrator.submitting import submission

    options = plan.size_options(nodes) if nodes is not None else []
    if exclude:
        options.append(f"--exclude={','.join((*own_exclusions(plan), *exclude))}")
    try:
        if plan.scheduler == "local":
            job_id = submission.submit_local(layout)
        else:
            job_id = submission.submit_slurm(layout, options=options)
    except SubmitError as error:
        store.append(layout, "refused", what="submit", why=str(error))
        raise
    store.append(layout, "submitted", job_id=job_id, nodes=nodes, exclude=list(exclude))
    return job_id
