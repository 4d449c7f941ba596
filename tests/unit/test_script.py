from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator import resources
from orchestrator.errors import TemplateError
from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.launchplan.script import before, directive, option, render, sh, value
from orchestrator.rundir.layout import RunLayout

from .builders import plan, site, spec

TEMPLATES = Path(str(resources.root("templates")))
GPU = {"model": "H100", "per_node": 4, "request": "gres"}
# Checked where they come from to be numbers, names or one of a few words.
PLAIN = {"version", "plan.run", "plan.notice_signal", "plan.nodes", "plan.nproc_per_node"} | {
    *("plan.cpus_per_node", "plan.policy.max_no_progress", "name", "plan.cloud", "job.name"),
    "plan.notice_lead_s",
    "plan.stop_on_rebalance | int",
    *("plan.container.runtime", 'few | join(" | ")'),
    '"base_environment" if plan.container.is_edf else "image"',
    "[plan.cpus_per_node // plan.nproc_per_node, 1] | max",
}


def slurm(**job: Any) -> LaunchPlan:
    return plan(spec(nodes=2, **job), site(gpu=GPU, cpus_per_node=96))


def local(**job: Any) -> LaunchPlan:
    return plan(spec(**job), site(scheduler="local"))


@pytest.mark.parametrize("made", [slurm(), local()])
def test_both_scripts_are_bash_with_line_feeds(made: LaunchPlan) -> None:
    scripts = render(made)
    assert set(scripts) == {"script.sbatch", "node.sh"}
    for text in scripts.values():
        assert text.startswith("#!/bin/bash\n")
        assert text.endswith("\n")
        assert "\r" not in text
        assert not re.search(r"\{\{|\}\}|\{%|%\}", text)
        assert all(line == line.rstrip() for line in text.split("\n"))


def test_directives_come_before_any_command() -> None:
    lines = render(slurm())["script.sbatch"].split("\n")
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options == list(range(1, 1 + len(slurm().directives)))
    assert [lines[i].removeprefix("#SBATCH ") for i in options] == [
        directive(pair) for pair in slurm().directives
    ]


def test_a_local_script_has_neither_directives_nor_commands_of_slurm() -> None:
    text = "\n".join(render(local()).values())
    for word in ("#SBATCH", "srun", "scontrol", "squeue", "SLURM_JOB_ID"):
        assert word not in text


@pytest.mark.parametrize("signal", ["USR1", "USR2"])
def test_script_node_and_option_name_the_same_signal(signal: str) -> None:
    scripts = render(slurm(notice={"signal": signal, "lead_s": 60}))
    other = {"USR1": "USR2", "USR2": "USR1"}[signal]
    assert f"#SBATCH --signal={signal}@60" in scripts["script.sbatch"]
    for text in scripts.values():
        assert f"trap 'on_notice {signal}' {signal}" in text
        assert "trap 'on_notice TERM' TERM" in text
        assert other not in text
    assert f"trap '' {signal} TERM" in scripts["node.sh"]


def test_one_task_a_node_with_its_cpus_in_the_background() -> None:
    text = render(slurm())["script.sbatch"]
    call = text[text.index("srun --nodes") :].split("&\n")[0]
    for word in ("--ntasks-per-node=1", "--cpus-per-task=96", "--kill-on-bad-exit=1", "--wait="):
        assert word in call
    assert "--export" not in call  # the user guide of one site says so
    assert "gpu" not in call


def test_nothing_is_asked_of_srun_that_the_plan_does_not_have() -> None:
    assert "--cpus-per-task=" not in render(plan())["script.sbatch"]


# --- every value is quoted --------------------------------------------------------------------


def test_every_value_in_the_templates_is_quoted_or_known_to_be_plain() -> None:
    found = {
        expression.strip()
        for path in TEMPLATES.iterdir()
        for expression in re.findall(r"\{\{(.*?)\}\}", path.read_text())
    }
    loose = {
        e for e in found if not re.search(r"\|\s*(sh|directive|value|option|before\(name\))$", e)
    } - PLAIN
    assert loose == {
        f'{words} | map("sh") | join(" ")' for words in ("plan.program", "job.command")
    }


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "''"),
        ("a b", "'a b'"),
        ("$HOME", "'$HOME'"),
        ("${SLURM_JOB_ID}", '"$job_id"'),
        ("/run/x-${SLURM_JOB_ID}/$(date)", "/run/x-\"$job_id\"'/$(date)'"),
    ],
)
def test_the_value_of_a_variable(text: str, word: str) -> None:
    assert value(text) == word


def test_a_path_before_others() -> None:
    assert before("/a b", "PATH") == "'/a b'${PATH:+:$PATH}"


@pytest.mark.parametrize(
    ("pair", "word"),
    [
        (("mpi", "pmix"), "--mpi=pmix"),
        (("exclusive", ""), "--exclusive"),
        (("cpu-bind", "a;$(b)"), "'--cpu-bind=a;$(b)'"),
    ],
)
def test_an_option_of_srun(pair: tuple[str, str], word: str) -> None:
    assert option(pair) == word


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("plain/path", "plain/path"),
        ("", "''"),
        ("a b", "'a b'"),
        ("$(date)", "'$(date)'"),
        ("it's", "'it'\"'\"'s'"),
        ("~", "'~'"),
        (7, "7"),
    ],
)
def test_a_word_of_bash(text: object, word: str) -> None:
    assert sh(text) == word


@pytest.mark.parametrize(
    ("pair", "line"),
    [
        (("requeue", ""), "--requeue"),
        (("time", "1-00:00:00"), "--time=1-00:00:00"),
        (("comment", "a b # c"), '--comment="a b # c"'),
        (("output", "/runs/it's/x"), '--output="/runs/it\'s/x"'),
        (("output", '/runs/a"b/x'), '--output="/runs/a\\"b/x"'),
        (("constraint", "h100&ib"), '--constraint="h100&ib"'),
        (("exclude", "n[1-2]"), '--exclude="n[1-2]"'),
        (("output", "/runs/\u00e9/x"), '--output="/runs/\u00e9/x"'),
    ],
)
def test_an_option_as_sbatch_reads_it(pair: tuple[str, str], line: str) -> None:
    assert directive(pair) == line


def test_values_land_quoted_in_the_scripts() -> None:
    made = planning.plan(
        spec(script="/t t.py", args=["$(x)"], env={"A": "`x`"}, modules=["m;x"], workdir="/w w"),
        site(),
        layout=RunLayout(Path("/r r/it's")),
        cwd=Path("/"),
        python="/v v/python",
    )
    batch, node = render(made)["script.sbatch"], render(made)["node.sh"]
    for line in (
        "export A='`x`'",
        "module load 'm;x' || die",
        "cd -- '/w w' || die",
        "run_dir='/r r/it'\"'\"'s'\n",
        '#SBATCH --output="/r r/it\'s/batch.log"\n',
    ):
        assert line in batch
    assert "'/v v/python' -m torch.distributed.run" in node
    assert "'/t t.py' '$(x)'" in node


# --- templates --------------------------------------------------------------------------------


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the templates that the renderer uses."""
    copy = tmp_path / "templates"
    shutil.copytree(TEMPLATES, copy)
    monkeypatch.setattr(resources, "root", lambda kind: copy)
    return copy


@pytest.mark.parametrize(
    "line",
    [
        "echo {{ plan.nodez }}",
        "echo {{ nodes }}",
        "{% if plan.cpus_per_nod %}x{% endif %}",
        "{% for x in plan.modulez %}x{% endfor %}",
        "echo {{ plan.nodes | shh }}",
        "{% if %}",
        '{% include "nowhere.j2" %}',
        "echo {{ plan.",
    ],
)
@pytest.mark.parametrize("file", ["train.sbatch.j2", "node.sh.j2", "_4_launch.sh.j2"])
def test_a_mistake_in_a_template_is_an_error(templates: Path, file: str, line: str) -> None:
    with (templates / file).open("a") as template:
        template.write(line + "\n")
    with pytest.raises(TemplateError):
        render(slurm())


def test_all_templates_are_used(templates: Path) -> None:
    texts = [path.read_text() for path in templates.iterdir()]
    used = {name for text in texts for name in re.findall(r'include "([^"]+)"', text)}
    assert {p.name for p in templates.iterdir()} == used | {
        "train.sbatch.j2",
        "node.sh.j2",
        "watch.sbatch.j2",
        "probe.sh.j2",
    }
