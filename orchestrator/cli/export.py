"""`fsdpq export`."""

import importlib.util
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from orchestrator import checkpoint
from orchestrator.checkpoint import Checkpoint
from orchestrator.checkpoint.names import published_step
from orchestrator.cli.main import echo_json, json_option, main, runs_option
from orchestrator.errors import CheckpointError, RunError
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from orchestrator.spec.train import load_train

if TYPE_CHECKING:
    from orchestrator.export.exporting import DtypeName, Exported

_NEEDED = ("torch", "transformers", "numpy")


def _finite(context: click.Context, option: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no size of a file; give gigabytes, such as 5")
    return value


@main.command("export")
@click.argument("run")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory to write; it must not be there yet.",
)
@click.option("--step", type=click.IntRange(min=0), help="The newest complete one by default.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "bf16", "fp16", "fp32"]),
    default="auto",
    show_default=True,
    help="auto: what the run computed in; fp32 for adapters alone.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "torch"]),
    default="safetensors",
    show_default=True,
    help="torch: one file of torch.save, pytorch_model.bin.",
)
@click.option("--adapter", is_flag=True, help="The LoRA adapters alone, in PEFT's layout.")
@click.option("--base", help="Where the directory of model.path is now, if it was moved.")
@click.option(
    "--shard-gb",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    callback=_finite,
    help="Most gigabytes (10^9 bytes) of a file.",
)
@click.option("--force", is_flag=True, help="Replace an earlier export in that place.")
@runs_option
@json_option
def export_command(
    run: str,
    output: Path,
    step: int | None,
    dtype: "DtypeName",
    form: Literal["safetensors", "torch"],
    adapter: bool,
    base: str | None,
    shard_gb: float,
    force: bool,
    runs: Path,
    as_json: bool,
) -> None:
    """Write the model of RUN, or of a checkpoint directory of a run, as Hugging Face loads it.

    On the CPU, with no more memory than the largest weight takes. LoRA adapters are merged into the
    weights, unless --adapter asks for them alone.
    """
    if adapter and form == "torch":
        raise click.UsageError("--adapter is written as safetensors; leave --format out")
    layout, step = _meant(run, runs, step)
    _check_python(layout)
    from orchestrator.export.exporting import Request, export
    from orchestrator.export.folder import check_target

    # The directory itself: a link to it is to stay, and `new/..` is not new.
    target = Path(os.path.realpath(output))
    check_target(target, force=force)  # before minutes of hashing
    spec = load_train(layout.train)
    found = _chosen(layout, step)
    request = Request(
        checkpoint=found.path,
        step=found.step,
        target=target,
        dtype=dtype,
        form=form,
        adapter=adapter,
        base=base,
        force=force,
        shard_bytes=int(shard_gb * 1e9),
    )
    _tell(layout, export(request, spec, say=_say), as_json=as_json)


def _meant(run: str, runs: Path, step: int | None) -> tuple[RunLayout, int | None]:
    """Return the run and the step; a run goes before a folder of its name."""
    path = Path(run).absolute()
    try:
        layout = store.find(run, runs=runs)
    except RunError:
        number = published_step(path.name)
        if number is None or not path.is_dir():
            raise
        if step not in (None, number):
            raise click.UsageError(f"{run} is step {number}; leave --step out") from None
        layout, step = RunLayout(path.parent.parent), number
    if not layout.train.is_file():
        raise RunError(
            f"{layout.root} has no train.json: only runs of fsdpq's own trainer can be exported;"
            " a script of yours knows how its model is saved"
        )
    return layout, step


def _check_python(layout: RunLayout) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise RunError(
            f"export needs {', '.join(missing)}, which this Python ({sys.executable}) does not"
            " have: pip install 'fsdpq[train]', or use the job's Python:"
            f" <python> -m orchestrator export {layout.root} ..."
        )


def _chosen(layout: RunLayout, step: int | None) -> Checkpoint:
    """Return the checkpoint, every byte of which is what was written.

    Raises:
        CheckpointError: There is no such one.
    """
    if step is None:
        _say("looking for the newest complete checkpoint; reads every byte")
        newest = checkpoint.newest_wanted(layout.checkpoints, verify=True)
        if newest is None:
            raise CheckpointError(f"{layout.root} has no complete checkpoint")
        if not newest.complete:
            raise CheckpointError(
                f"{newest.path}: {newest.reason}. It may be sound; for an older one name its --step"
            )
        return newest
    path = layout.checkpoints / f"step-{step}"
    known = [str(found.step) for found in checkpoint.list_checkpoints(layout.checkpoints)]
    if str(step) not in known:
        there = ", ".join(known) or "none"
        raise CheckpointError(f"{path}: there is no such checkpoint; there are {there}")
    found = checkpoint.inspect(path, step=step, verify=True)
    if not found.complete:
        raise CheckpointError(f"{path} is not complete: {found.reason}")
    return found


def _tell(layout: RunLayout, exported: "Exported", *, as_json: bool) -> None:
    if as_json:
        echo_json({"run": layout.name, **_json(exported)})
        return
    size = f"{exported.nbytes / 2**30:.2f} GiB in {exported.dtype}"
    click.echo(f"{exported.kind} of step {exported.step} written to {exported.target}: {size}")
    if not exported.tokenizer:
        click.echo("there was no tokenizer to copy", err=True)


def _json(exported: "Exported") -> dict[str, Any]:
    return {
        "step": exported.step,
        "path": str(exported.target),
        "kind": exported.kind,
        "dtype": exported.dtype,
        "files": list(exported.files),
        "bytes": exported.nbytes,
        "parameters": exported.parameters,
        "tokenizer": exported.tokenizer,
    }


def _say(text: str) -> None:
    click.echo(text, err=True)
