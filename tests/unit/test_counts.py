"""No whole number of a job file or a profile is without a bound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.errors import SpecError
from orchestrator.profile import SiteProfile
from orchestrator.spec.job import JobSpec, load_job

from .builders import SITE
from .test_job_spec import TRAIN, write


def unbounded(schema: Any, name: str = "") -> Iterator[str]:
    """Yield the names of whole numbers without a bound; times have one of their own."""
    if isinstance(schema, list):
        for item in schema:
            yield from unbounded(item, name)
    elif isinstance(schema, dict):
        if schema.get("type") == "integer" and "maximum" not in schema:
            yield name
        for key, value in schema.items():
            yield from unbounded(value, name if key in ("anyOf", "items") else key)


@pytest.mark.parametrize("model", [JobSpec, SiteProfile])
def test_each_has_a_bound(model: type[JobSpec | SiteProfile]) -> None:
    names = set(unbounded(model.model_json_schema(mode="serialization")))
    of_their_own = {"switches_wait", "replicate", "every_steps", "loss_chunks"}
    assert {n for n in names if "time_limit" not in n} - of_their_own == set()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("nodes=9999999999", "nodes: must be 65536 or less (given: 9999999999)"),
        (f"nodes=1{'0' * 40}", "nodes: must be 65536 or less"),
        ("nodes=0", "nodes: must be 1 or more (given: 0)"),
        ("gpus_per_node=99999", "gpus_per_node: must be 1024 or less"),
        ("cpus_per_node=65536", "cpus_per_node: must be 65535 or less"),
        ("mem_gib=9999999999", "mem_gib: must be 1048576 or less"),
        ("restart.max_no_progress=10001", "restart.max_no_progress: must be 10000 or less"),
        ("train.steps=1000000000001", "train.steps: must be 1000000000000 or less"),
        ("train.timeouts_s.step=9999999999", "train.timeouts_s.step: must be 31536000 or less"),
        ("train.mesh.replicate=1000000000001", "number of copies, 1 to 1000000000000, or auto"),
        ("train.loss_chunks=65537", "whole number of parts, 1 to 65,536, or auto"),
        ("train.checkpoint.every_steps=0", "number of steps, 1 to 1000000000000, or auto"),
        ("time_limit=99999999999-0", "time_limit: must be shorter than 100 years"),
    ],
)
def test_what_is_beyond_it_is_refused(tmp_path: Path, override: str, words: str) -> None:
    job = write(tmp_path, script=None, train=TRAIN)
    with pytest.raises(SpecError, match=r"^\S+llama\.yaml: ") as caught:
        load_job(job, overrides=[override])
    assert words in str(caught.value)


@pytest.mark.parametrize("command", ["render", "submit"])
def test_an_absurd_number_of_nodes_where_the_site_knows_no_limit(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(SITE))
    job = write(tmp_path, site="ours.yaml")
    (tmp_path / "train.py").write_text("")
    done = CliRunner().invoke(main, [command, str(job), "--set", "nodes=9999999999"])
    assert (done.exit_code, done.output.count("\n")) == (1, 1)
    assert f"{job}: nodes: must be 65536 or less (given: 9999999999)" in done.output
