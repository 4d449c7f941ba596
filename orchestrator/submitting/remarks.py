"""What looks like a mistake in a job and may be none: said at its submission, and no obstacle."""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from orchestrator.lint import Surroundings
from orchestrator.profile import SiteProfile
from orchestrator.rundir.layout import RunLayout
from orchestrator.spec.job import JobSpec
from orchestrator.submitting import linting
from orchestrator.submitting.described import Described
from orchestrator.submitting.train_remarks import of_train


def of_job(spec: JobSpec, profile: SiteProfile) -> Iterator[str]:
    """Yield what looks like a mistake, though only the nodes can tell."""
    if spec.python is None and spec.container is None and find_spec("torch") is None:
        yield (
            f"{sys.executable} has no torch, and the job would run with it; name the interpreter of"
            " your training environment with `python:`"
        )
    yield from of_request(spec, profile)


def of_request(spec: JobSpec, profile: SiteProfile) -> Iterator[str]:
    """Yield what looks like a mistake in the files, wherever the job is to be submitted."""
    if profile.scheduler == "slurm" and profile.gpu is None and spec.gpus_per_node is not None:
        yield (
            f"gpus_per_node: the profile {profile.name} says nothing of GPUs, so the job asks Slurm"
            " for none; extend it with `gpu: {model: ..., per_node: ...}`, or let"
            " `fsdpq sites detect` write one"
        )
    known = ", ".join(profile.partitions)
    if spec.partition and known and spec.partition not in profile.partitions:
        yield (
            f"partition {spec.partition}: the site {profile.name} knows {known}; limits, constraint"
            " and preemption of this one are unknown"
        )
    if spec.train is not None:
        yield from of_train(spec.train)


def of_lint(described: Described, layout: RunLayout) -> Iterator[str]:
    """Yield the errors and warnings of `fsdpq sites lint`; they hold nobody up.

    Of the remarks only the one on memory: a job may die of what it does not ask for.
    """
    found = linting.spec_findings(
        described.spec,
        described.profile,
        file=str(described.job),
        site_file=str(described.site_file),
        run_dir=layout.root,
        around=Surroundings(environ=dict(os.environ)),
    )
    names = {"error": "warning, an error to `fsdpq sites lint`: ", "warn": "warning: ", "info": ""}
    return (
        f"{names[one.level]}{one.text()}"
        for one in found
        if one.level != "info" or one.rule == "memory-unknown"
    )
