"""What may stand in a job file and in a site profile, and how a mistake is told."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator import resources
from orchestrator.errors import SpecError
from orchestrator.keys.fields import (
    EnvVars,
    Line,
    RunName,
    SbatchValue,
    Strict,
    TimeLimit,
    read_scalar,
    read_yaml,
    time_limit_s,
    validate,
)

CONTROL = [*(chr(code) for code in [*range(32), *range(0x7F, 0xA0)]), "\u2028", "\u2029"]
INJECTION = "x\n#SBATCH --partition=lowcancel\ntouch F"


class Inner(Strict):
    lead_s: int = 1
    signal: str = ""


class Model(Strict):
    name: RunName = "a"
    line: Line = ""
    option: SbatchValue = "a"
    env: EnvVars = {}  # noqa: RUF012 (pydantic copies it)
    time_limit: TimeLimit = 60
    inner: Inner = Inner()
    others: dict[str, Inner] = {}  # noqa: RUF012
    texts: tuple[Line, ...] = ()


def check(**data: Any) -> Model:
    return validate(Model, data, where=Path("job.yaml"), error=SpecError)


def complaint(**data: Any) -> str:
    with pytest.raises(SpecError) as caught:
        check(**data)
    return str(caught.value)


def read(text: str) -> Any:
    return read_scalar(text, where="--set k=v", error=SpecError)


# --- scalars as YAML 1.2 reads them -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12:30:00", "12:30:00"),
        ("24:00:00", "24:00:00"),
        ("04:00:00", "04:00:00"),
        ("12:30", "12:30"),
        ("0123", "0123"),
        ("-0123", "-0123"),
        ("00", "00"),
        ("0123.5", "0123.5"),
        ("0x10", "0x10"),
        ("0o17", "0o17"),
        ("0b1", "0b1"),
        ("1_000", "1_000"),
        ("on", "on"),
        ("off", "off"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("2026-11-29", "2026-11-29"),
        ("2026-11-29T10:00:00", "2026-11-29T10:00:00"),
        ("<<", "<<"),
        ("=", "="),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("1e-4", 1e-4),
        ("1E3", 1000.0),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("0", 0),
        ("+7", 7),
        ("-7", -7),
        ("", None),
        ("~", None),
        ("null", None),
        ("nUll", "nUll"),
        ("'7'", "7"),
        ("[1, a]", [1, "a"]),
        ("{a: 1}", {"a": 1}),
        ("gpu:h100:8", "gpu:h100:8"),
        ("1e", "1e"),
        (".", "."),
        ("-", [None]),
        ("+", "+"),
    ],
)
def test_plain_scalars(text: str, value: object) -> None:
    found = read(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2",
        "a: {b: 1, b: 1}",
        "- a: 1\n  a: 2",
        "'a': 1\na: 2",
        "1: x",
        "[a]: x",
        "? {a: 1}\n: x",
        "true: x",
        "a: b: c",
        "[1",
        '"a',
        "a: *nowhere",
        "!!python/object:os.system x",
        "!!set {a}",
        "!!binary aGk=",
        "!!timestamp 2026-11-29",
        "!own x",
        "a\x00b",
        '"\\ud800"',
        "{'\\udfff': 1}" .replace("'", '"'),
        "9" * 5000,
        "a\n---\nb",
        "[" * 400,
        "\udce9",
    ],
)  # fmt: skip
def test_what_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(text)
    assert "--set k=v: is not valid YAML" in str(caught.value)


def test_a_repeated_key_is_named_with_its_line() -> None:
    with pytest.raises(SpecError, match=r"line 3, .*'nodes' stands here twice"):
        read("nodes: 1\nname: x\nnodes: 2")


def test_an_alias_is_fine() -> None:
    assert read("a: &x [1]\nb: *x") == {"a": [1], "b": [1]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a", "keys and values"),
        (b"- a", "keys and values"),
        (b"", "keys and values"),
        (b"\xff\xfe\x00", "is no text in UTF-8"),
        (b"name: caf\xe9", "is no text in UTF-8"),
        (b"a: [", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_mapping(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read_yaml(path, error=SpecError)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        read_yaml(tmp_path / "job.yaml", error=SpecError)
    with pytest.raises(SpecError, match="cannot be read"):
        read_yaml(tmp_path, error=SpecError)
    with pytest.raises(SpecError, match="cannot be read"):
        read_yaml(tmp_path / ("x" * 300), error=SpecError)


def test_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"name: x\r\nnodes: 2\r\n")
    assert read_yaml(path, error=SpecError) == {"name": "x", "nodes": 2}


# --- times as sbatch spells them (measured on 22.05) ------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 600),
        (10, 600),
        ("4:00", 240),
        ("4:30", 270),
        ("90:00", 5400),
        ("1:2:3", 3723),
        ("12:00:00", 43200),
        ("24:00:00", 86400),
        ("1-0", 86400),
        ("2-12", 216000),
        ("3-0:00", 259200),
        ("1-12:30", 131400),
        ("1-12:30:15", 131415),
        ("0:01", 1),
        ("100-0", 8640000),
    ],
)
def test_time_table(text: object, seconds: int) -> None:
    assert time_limit_s(text) == seconds
    assert check(time_limit=text).time_limit == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("1h", "90s", "1:2:3:4", "", " ", "-5", -5, "1-", "-1", "1-2-3", "1:", ":1", "1.5", 1.5),
        *(
            "UNLIMITED",
            "INFINITE",
            "infinite",
            "0",
            0,
            "0:00",
            "0-0",
            None,
            (),
            "10\n",
            "1 0",
            True,
        ),
    ],
)
def test_what_is_no_time(text: object) -> None:
    message = complaint(time_limit=text)
    assert message.startswith("job.yaml: time_limit: ")
    assert "write it as sbatch does" in message or "longer than 0" in message


# --- texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("char", [*CONTROL, chr(0xD800), chr(0xDFFF)])
@pytest.mark.parametrize("field", ["name", "line", "option"])
def test_control_characters_are_refused(field: str, char: str) -> None:
    assert complaint(**{field: f"a{char}b"}).startswith(f"job.yaml: {field}: ")
    assert complaint(**{field: f"a{char}"})
    if field != "name":
        assert "control character" in complaint(**{field: f"a{char}b"})


@pytest.mark.parametrize("char", CONTROL)
def test_control_characters_are_refused_in_lists_and_in_the_environment(char: str) -> None:
    assert "texts.1" in complaint(texts=["fine", f"a{char}"])
    assert "env: A contains the control character" in complaint(env={"A": char})


@pytest.mark.parametrize("field", ["name", "line", "option", "texts", "env"])
def test_a_newline_does_not_start_a_directive(field: str) -> None:
    value: Any = {"texts": [INJECTION], "env": {"A": INJECTION}}.get(field, INJECTION)
    assert complaint(**{field: value})


@pytest.mark.parametrize("text", ["a b", "it's", "$HOME", "`x`", '"', "\\", "\u00e9\U0001f600", ""])
def test_a_line_may_hold_anything_else(text: str) -> None:
    assert check(line=text).line == text


@pytest.mark.parametrize("text", ["$proj", "${proj}", "a`b`", "a\\b", 'a"b', "it's"])
def test_an_sbatch_option_holds_nothing_that_looks_expanded(text: str) -> None:
    assert "expands no variables" in complaint(option=text)


@pytest.mark.parametrize("text", ["", " ", "  "])
def test_an_empty_sbatch_option_is_refused(text: str) -> None:
    assert "is empty" in complaint(option=text)


@pytest.mark.parametrize("text", ["h100&ib", "a100|h100", "[a*2]", "gpu(x)", "a b", "x=y", "a,b"])
def test_what_slurm_reads_in_an_option_is_let_through(text: str) -> None:
    assert check(option=text).option == text


@pytest.mark.parametrize("text", ["a", "7b-run_1.x", "A" * 64])
def test_run_names(text: str) -> None:
    assert check(name=text).name == text


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "-a", "_a", "a b", "a/b", "a|b", "a%j", "a;b", "\u00e9", "A" * 65, "a\n"],
)
def test_names_that_cannot_be_a_folder_and_a_job(text: str) -> None:
    assert "use 1 to 64" in complaint(name=text)


# --- the environment of the job ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "GITHUB_TOKEN", "token", "HfToken", "TOKEN_2", "WANDB_API_KEY"),
        *("OPENAI_APIKEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "PGPASSWD", "MY_CREDENTIAL"),
        *("SSH_PRIVATE_KEY",),
    ],
)
def test_secrets_do_not_go_into_scripts(name: str) -> None:
    message = complaint(env={name: "hunter2"})
    assert name in message
    assert "fsdpq submit" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "tokenizer_path", "NCCL_IB_HCA", "KEY", "x", "_A"],
)
def test_names_that_are_no_secrets(name: str) -> None:
    assert check(env={name: "false"}).env == {name: "false"}


@pytest.mark.parametrize(
    "name", ["", "A B", "A-B", "1A", "A=B", "A\nB", "$A", "\u00c4", "A;touch x"]
)
def test_what_is_no_name_of_a_variable(name: str) -> None:
    assert "is no name of an environment variable" in complaint(env={name: "x"})


@pytest.mark.parametrize("name", ["FSDPQ_ATTEMPT", "run_dir", "UID", "IFS", "SHELLOPTS", "_"])
def test_names_that_the_scripts_need(name: str) -> None:
    assert "set by the job's own scripts" in complaint(env={name: "x"})


def test_all_variables_of_the_scripts_are_refused() -> None:
    assigned = re.compile(r"^\s*(?:for )?([a-z_]\w*)(?:=| in )|\b([a-z]\w*) \+?= ", re.MULTILINE)
    names = {
        name
        for template in resources.root("templates").iterdir()
        # No variables of a job file in these.
        if template.name not in ("watch.sbatch.j2", "probe.sh.j2")
        for pair in assigned.findall(_without_awk(template.read_text(encoding="utf-8")))
        for name in pair
        if name
    }
    assert {"run_dir", "attempt", "code", "status", "local_dir"} <= names
    let_through = [name for name in sorted(names) if _passes(name)]
    assert let_through == []


def _without_awk(script: str) -> str:
    """Return a script without its awk programs, whose variables are no shell's."""
    return re.sub(r"awk '[^']*'", "", script)


def _passes(name: str) -> bool:
    try:
        check(env={name: "x"})
    except SpecError:
        return False
    return True


@pytest.mark.parametrize("value", [4, 1.5, True, None, ["a"]])
def test_values_of_variables_are_text(value: object) -> None:
    message = complaint(env={"A": value})
    assert message.startswith("job.yaml: env.A: ")
    assert value in (None, ["a"]) or "put it in quotes" in message


# --- how a mistake is told --------------------------------------------------------------------


def test_an_unknown_key_lists_the_valid_ones_and_guesses() -> None:
    message = complaint(tim_limit=5)
    assert "job.yaml: tim_limit: is no key here. Did you mean 'time_limit'?" in message
    assert "Valid keys: env, inner, line, name, option, others, texts, time_limit" in message


def test_an_unknown_key_further_down_lists_those_that_are_valid_there() -> None:
    message = complaint(inner={"lead": 5})
    assert (
        "inner.lead: is no key here. Did you mean 'lead_s'? Valid keys: lead_s, signal" in message
    )
    assert "others.x.sgnal" in complaint(others={"x": {"sgnal": "a"}})
    assert "Valid keys: lead_s, signal" in complaint(others={"x": {"sgnal": "a"}})


def test_nothing_is_guessed_for_a_far_off_key() -> None:
    assert "Did you mean" not in complaint(zzz=1)


def test_each_mistake_has_a_line() -> None:
    lines = complaint(name="a b", zzz=1, inner={"lead_s": "x"}).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("job.yaml: ") for line in lines)
    assert "(given: 'a b')" in lines[0]


@pytest.mark.parametrize("value", [5, None, "x", [1]])
def test_a_value_where_keys_belong(value: object) -> None:
    assert "inner" in complaint(inner=value)


def test_a_file_of_aliases_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(SpecError, match="aliases"):
        read_yaml(path, error=SpecError)


def test_a_file_that_is_far_too_large_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("args: [" + "x, " * 200_000 + "x]")
    with pytest.raises(SpecError, match="larger than 256 KiB"):
        read_yaml(path, error=SpecError)


def test_a_pipe_and_a_device_without_an_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe.yaml", "zero.yaml"):
        with pytest.raises(SpecError, match="is no ordinary file"):
            read_yaml(tmp_path / name, error=SpecError)


def test_a_mistake_does_not_repeat_a_secret(tmp_path: Path) -> None:
    class Job(Strict):
        nodes: int

    token = "hf_" + "a" * 30
    with pytest.raises(SpecError) as caught:
        validate(Job, {"nodes": token}, where=tmp_path / "job.yaml", error=SpecError)
    assert "(given: (not shown))" in str(caught.value)
