"""Any text in any text field: refused, or it arrives word for word and nothing is executed.

The rendered scripts run whole, with small programs in the place of srun, scontrol, squeue and
Python; the one for Python writes down what it was started with.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError, SpecError
from orchestrator.launchplan import plan as planning
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.launchplan.script import render
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from orchestrator.submitting.launch import _run_dir

from .builders import plan, site, spec

PIECES = [
    *("$(touch $CANARY)", "`touch $CANARY`", "'; touch $CANARY; '", '"; touch $CANARY; "'),
    *("\n#SBATCH --comment=x\n", "\ntouch $CANARY\n", "; touch $CANARY #", "&& touch $CANARY"),
    *("> $CANARY", "| tee $CANARY", "<(touch $CANARY)", "${x:=`touch $CANARY`}", "$'\\n'"),
    *("'", '"', "\\", "\\\\", "$", "`", "!", "!!", "*", "?", "[a-z]", "{a,b}", "~", "~root", "#"),
    *(" ", "  ", "\t", "\r", "\n", "\x00", "\x1b[31m", "\x7f", "\x85", "\u2028", "\ud800", "%"),
    *("%j", "%%", "%s", "{{ 7 * 7 }}", "{% if x %}", "{#", "${IFS}", "$HOME", "$((1+1))", "=", "-"),
    *("--", "--help", "-rf", "a", "Z9", "\u00e9", "\u4e2d", "\U0001f600", "\u202e", "&", "|", ";"),
    *("<", ">", "(", ")", ",", ":", "@", "+", "..", "/", "./", "EOF", "\\n", "'\"'\"'", "\xa0"),
]
FIELDS = [
    *("account", "qos", "comment", "constraint", "reservation", "partition", "exclude"),
    *("args", "env", "workdir", "python", "script", "modules"),
]

FAKE_PYTHON = """#!/bin/bash
[[ $2 != orchestrator.monitor && $2 != orchestrator.preflight ]] || exit 0
printf '%s\\0' "$PWD" "$@" >"$FUZZ_OUT/argv"
env -0 >"$FUZZ_OUT/env"
"""
FAKES = {
    "srun": '#!/bin/bash\nwhile [ "$1" != bash ]; do shift; done\nexec "$@"\n',
    "scontrol": "#!/bin/bash\necho host1\n",
    "squeue": "#!/bin/bash\necho RUNNING\n",
}
MODULE = 'module() { printf "%s\\0" "$@" >>"$FUZZ_OUT/modules"; }\nexport -f module\n'


def texts(seed: int, count: int) -> list[str]:
    choose = random.Random(seed)
    return ["".join(choose.choices(PIECES, k=choose.randint(1, 5))) for _ in range(count)]


def with_text(field: str, text: str) -> dict[str, Any]:
    values: dict[str, Any] = {"args": ["--x", text], "exclude": [text], "modules": [text]}
    return {field: values.get(field, {"A_1": text} if field == "env" else text)}


def accepted(field: str, text: str) -> bool:
    try:
        spec(**with_text(field, text))
    except InputError:
        return False
    return True


@pytest.mark.parametrize("field", [*FIELDS, "name", "site"])
def test_every_text_is_refused_with_words_or_taken_as_it_is(field: str) -> None:
    taken = [text for text in texts(1, 1500) if accepted(field, text)]
    for text in taken:
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", text)
        made = json.loads(spec(**with_text(field, text)).model_dump_json())[field]
        assert text in json.dumps(made, ensure_ascii=False) or json.dumps(text)[1:-1] in json.dumps(
            made
        )
    assert 5 < len(taken) < 1500


# --- sbatch's reading of its options ----------------------------------------------------------


def read_option(line: str) -> str:
    """Return what sbatch 22.05 takes the option on ``line`` for: quotes and backslashes go."""
    found, quote, escaped = "", "", False
    rest = line.removeprefix("#SBATCH ")
    for place, char in enumerate(rest):
        if escaped:
            found, escaped = found + char, False
        elif char == "\\":
            escaped = True
        elif quote:
            quote, found = ("", found) if char == quote else (quote, found + char)
        elif char in "\"'":
            quote = char
        elif char.isspace() or char == "#":
            raise AssertionError(f"{rest!r} is more than one option from {rest[place:]!r} on")
        else:
            found += char
    assert not quote
    return found


def test_options_reach_sbatch_word_for_word() -> None:
    taken = iter([text for text in texts(2, 1500) if accepted("comment", text)])
    for _ in range(15):
        fields = ["account", "qos", "comment", "constraint", "reservation", "partition"]
        job = {field: next(taken) for field in fields} | {"exclude": [next(taken), next(taken)]}
        made = plan(spec(**job))
        lines = render(made)["script.sbatch"].split("\n")
        options = [line for line in lines if line.startswith("#SBATCH")]
        assert lines[1 : 1 + len(options)] == options
        expected = [f"--{name}" + (f"={value}" if value else "") for name, value in made.directives]
        assert [read_option(line) for line in options] == expected
        assert {f"--{field}={job[field]}" for field in fields} <= set(expected)


# --- bash's reading of the scripts ------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path) -> dict[str, str]:
    """An environment whose commands are fakes, and a folder for what they see."""
    fakes, out = tmp_path / "bin", tmp_path / "out"
    for folder in (fakes, out):
        folder.mkdir()
    for name, text in FAKES.items():
        (fakes / name).write_text(text)
        (fakes / name).chmod(0o755)
    (tmp_path / "module.sh").write_text(MODULE)
    return {
        "PATH": f"{fakes}:/usr/bin:/bin",
        "FUZZ_OUT": str(out),
        "CANARY": str(tmp_path / "canary"),
        "BASH_ENV": str(tmp_path / "module.sh"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "host1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NODEID": "0",
        "LC_ALL": "C.UTF-8",
        "TMPDIR": str(tmp_path),
    }


def safe_name(text: str) -> str:
    """Return ``text`` as the name of one file."""
    name = text.replace("/", "_").encode()[:200].decode(errors="ignore")
    return f"x{name}"


def start(made: LaunchPlan, layout: RunLayout, stage: dict[str, str]) -> list[str]:
    """Run the scripts of a plan as a scheduler would, and return what Python was started with."""
    store.create(layout, render(made))
    for script in (layout.script, layout.node_script):
        subprocess.run(["bash", "-n", script], check=True, stdin=subprocess.DEVNULL)
    done = subprocess.run(
        ["bash", layout.script], env=stage, capture_output=True, text=True, timeout=20, check=False
    )
    assert not Path(stage["CANARY"]).exists(), "a value was executed"
    assert done.returncode == 0, done.stdout + done.stderr + read(layout.output)
    return written(stage, "argv")


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def written(stage: dict[str, str], name: str) -> list[str]:
    return (Path(stage["FUZZ_OUT"]) / name).read_bytes().decode().split("\0")[:-1]


@pytest.mark.processes
@pytest.mark.parametrize("scheduler", ["slurm", "local"])
@pytest.mark.parametrize("seed", range(10))
def test_values_reach_python_word_for_word(
    tmp_path: Path, stage: dict[str, str], seed: int, scheduler: str
) -> None:
    some = iter(text for text in texts(100 + seed, 2000) if accepted("args", text))
    workdir, bin_ = tmp_path / safe_name(next(some)), tmp_path / safe_name(next(some))
    for folder in (workdir, bin_):
        folder.mkdir(exist_ok=True)
    python = bin_ / safe_name(next(some))
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    env = {f"A_{i}": next(some) for i in range(40)}
    args = [next(some) for _ in range(40)]
    modules = [next(some) for _ in range(5)]
    script = str(tmp_path / safe_name(next(some)))
    job = spec(
        **{"script": script, "args": args, "env": env, "modules": modules},
        **{"workdir": str(workdir), "python": str(python)},
    )
    root = next(text for text in some if "%" not in text and "\\" not in text)
    layout = RunLayout(_run_dir(tmp_path / safe_name(root), "llama"))
    made = planning.plan(
        job, site(scheduler=scheduler), layout=layout, cwd=tmp_path, python=sys.executable
    )
    pwd, *argv = start(made, layout, stage)
    assert pwd == str(workdir)
    assert argv[:2] == ["-m", "torch.distributed.run"]
    assert argv[-len(args) - 1 :] == [script, *args]
    seen = dict(item.split("=", 1) for item in written(stage, "env"))
    assert {name: seen[name] for name in env} == env
    assert seen["FSDPQ_RUN_DIR"] == str(layout.root)
    assert seen["FSDPQ_ATTEMPT_DIR"] == str(layout.attempt(1).root)
    assert seen["FSDPQ_HEAD"] == ("host1" if scheduler == "slurm" else "127.0.0.1")
    assert 16384 <= int(seen["FSDPQ_PORT"]) < 32768
    assert written(stage, "modules") == [w for module in modules for w in ("load", module)]
    start_json = store.read_json(layout.attempt(1).start)
    assert start_json is not None
    assert layout.finished.exists()


@pytest.mark.parametrize("runs", ["/a%j", "/a\\b", "/a\nb", "/a\udce9", "/a\x1bb"])
def test_run_directories_that_slurm_cannot_write_to(runs: str) -> None:
    with pytest.raises(SpecError, match="choose another directory"):
        _run_dir(Path(runs), "llama")


@pytest.mark.processes
def test_bash_keeps_none_of_the_names_that_are_let_through(
    tmp_path: Path, stage: dict[str, str]
) -> None:
    """Names that bash sets itself are refused: all others arrive."""
    listing = "compgen -A variable; echo http_proxy LANG HISTFILE CDPATH ENV TMOUT GLOBIGNORE"
    done = subprocess.run(["bash", "-c", listing], capture_output=True, text=True, check=True)
    # Not the ones that this test needs; bash takes PS4 from nobody's hands if root runs it.
    names = set(done.stdout.split()) - {*stage, *os.environ, "PS4"}
    env = {name: "value" for name in sorted(names) if _lets(name)}
    assert {"http_proxy", "HOSTTYPE"} <= set(env)
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    layout = RunLayout(tmp_path / "llama")
    made = planning.plan(spec(env=env), site(), layout=layout, cwd=tmp_path, python=str(python))
    start(made, layout, stage)
    seen = dict(item.split("=", 1) for item in written(stage, "env"))
    assert {name: seen.get(name) for name in env} == env


def _lets(name: str) -> bool:
    try:
        spec(env={name: "value"})
    except SpecError:
        return False
    return True
