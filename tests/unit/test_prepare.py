"""`fsdpq prepare`: real worker processes over small sources."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli.main import main
from orchestrator.cli.prepare import describe
from orchestrator.errors import SpecError
from orchestrator.tokens import pieces, preparing
from orchestrator.tokens.index import read_index
from orchestrator.tokens.preparing import StoppedError, prepare
from orchestrator.tokens.progress import Progress
from orchestrator.tokens.request import Request
from orchestrator.tokens.shard import HEADER_BYTES

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_LEAST", 2000)


def fsdpq(*words: object) -> Result:
    return CliRunner().invoke(main, ["prepare", *map(str, words)])


def write_lines(path: Path, count: int = 300) -> list[str]:
    texts = [f"Document {n}: {n} cubed is {n**3}." for n in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


def row_of(folder: Path) -> bytes:
    """Return the tokens of all shards, for a vocabulary of bytes."""
    return b"".join(
        (folder / one.file).read_bytes()[HEADER_BYTES:][: one.tokens]
        for one in read_index(folder).shards
    )


def request(path: Path, **changes: Any) -> Request:
    return Request(**{"kind": "jsonl", "paths": (str(path),), **changes})


def make(path: Path, out: Path, *, workers: int = 1, **changes: Any) -> Any:
    return prepare(request(path), out, workers=workers, python=sys.executable, **changes)


def test_any_number_of_workers_makes_the_same(tmp_path: Path) -> None:
    texts = write_lines(tmp_path / "a.jsonl")
    one = make(tmp_path / "a.jsonl", tmp_path / "one")
    three = make(tmp_path / "a.jsonl", tmp_path / "three", workers=3)
    assert one == three
    assert len(one.shards) > 4
    assert one.documents == len(texts)
    assert row_of(tmp_path / "three") == "".join(texts).encode()
    kept = {entry.file for entry in one.shards}
    assert {path.name for path in (tmp_path / "one").iterdir()} == {"index.json", *kept}
    assert not (tmp_path / "one.part").exists()


def test_a_folder_that_is_no_shards_is_left_alone(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    result = fsdpq(tmp_path / "a.jsonl", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert (
        result.stderr
        == f"Error: {tmp_path}/out: is there and holds no token shards; name another folder\n"
    )
    assert (tmp_path / "out" / "mine").read_text() == "x"


def test_a_stopped_one_goes_on(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl")
    out, part = tmp_path / "out", tmp_path / "out.part"
    with pytest.raises(StoppedError):
        make(tmp_path / "a.jsonl", out, stop=lambda: len(list(part.glob("tokens-*.json"))) > 1)
    assert not out.exists()
    made = {path.name: path.stat().st_ino for path in part.glob("tokens-*.bin")}
    seen: list[int] = []
    index = make(tmp_path / "a.jsonl", out, tell=lambda progress: seen.append(progress.before))
    assert seen[0] > 0
    first = index.shards[0].file
    assert (out / first).stat().st_ino == made[first]  # not done again
    assert index == make(tmp_path / "a.jsonl", tmp_path / "straight")


def test_a_killed_one_leaves_nothing_half_valid(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", 20_000)
    out, part = tmp_path / "out", tmp_path / "out.part"
    argv = [sys.executable, "-m", "orchestrator", "prepare", str(tmp_path / "a.jsonl"), "-o"]
    process = subprocess.Popen(
        [*argv, str(out), "--workers", "1"], start_new_session=True, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not (part / "plan.json").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    with pytest.raises(SpecError, match="not finished"):
        read_index(out)
    done = subprocess.run([*argv, str(out)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert fsdpq(out, "--check").output == (
        f"{out}: whole, {read_index(out).tokens:,} tokens in {len(read_index(out).shards)} shards\n"
    )


def test_workers_end_with_whoever_started_them(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.tokens.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(60) == 0
    assert worker.stdout is not None
    worker.stdout.close()


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl")
    index = make(tmp_path / "a.jsonl", tmp_path / "out")
    before = (tmp_path / "out/index.json").stat().st_mtime_ns
    assert make(tmp_path / "a.jsonl", tmp_path / "out") == index
    assert (tmp_path / "out/index.json").stat().st_mtime_ns == before
    other = fsdpq(tmp_path / "a.jsonl", "-o", tmp_path / "out", "--field", "body")
    assert "was made with another field" in other.output
    write_lines(tmp_path / "a.jsonl", 10)
    with pytest.raises(SpecError, match=r"made from other files .*a\.jsonl has"):
        make(tmp_path / "a.jsonl", tmp_path / "out")


def test_an_unfinished_one_of_something_else(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl")
    out, part = tmp_path / "out", tmp_path / "out.part"
    with pytest.raises(StoppedError):
        make(tmp_path / "a.jsonl", out, stop=lambda: any(part.glob("tokens-*.json")))
    write_lines(tmp_path / "a.jsonl", 200)
    with pytest.raises(SpecError, match=r"unfinished preparation of other files .*--anew"):
        make(tmp_path / "a.jsonl", out)
    assert make(tmp_path / "a.jsonl", out, anew=True).documents == 200


@pytest.mark.parametrize("plan", [None, "torn"])
def test_in_a_folder_of_ones_own_it_is_thrown_away(tmp_path: Path, plan: str | None) -> None:
    write_lines(tmp_path / "a.jsonl")
    out, part = tmp_path / "out", tmp_path / "out.part"
    with pytest.raises(StoppedError):
        make(tmp_path / "a.jsonl", out, stop=lambda: any(part.glob("tokens-*.json")))
    write_lines(tmp_path / "a.jsonl", 200)
    if plan is not None:
        (part / "plan.json").write_text(plan)
    assert make(tmp_path / "a.jsonl", out, own=True).documents == 200


def test_in_a_folder_of_ones_own_it_goes_on(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl")
    out, part = tmp_path / "out", tmp_path / "out.part"
    with pytest.raises(StoppedError):
        make(tmp_path / "a.jsonl", out, stop=lambda: any(part.glob("tokens-*.json")))
    whole = [path.with_suffix(".bin") for path in part.glob("tokens-*.json")]
    made = {path.name: path.stat().st_mtime_ns for path in whole}
    make(tmp_path / "a.jsonl", out, own=True)
    assert made
    assert made.items() <= {p.name: p.stat().st_mtime_ns for p in out.iterdir()}.items()


def test_what_a_killed_one_left_in_a_finished_folder_goes(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl")
    out = tmp_path / "out"
    make(tmp_path / "a.jsonl", out)
    whole = {path.name for path in out.iterdir()}
    for name in ("lock", "plan.json", "tokens-00001.json", "of-a-user.json"):
        (out / name).write_text("{}")
    make(tmp_path / "a.jsonl", out)
    assert {path.name for path in out.iterdir()} == {*whole, "of-a-user.json"}


def test_bad_lines_stop_it_or_are_counted(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", 100)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"text": 5}\n{"text": "torn')
    result = fsdpq(tmp_path / "a.jsonl", "-o", tmp_path / "out", "--workers", 2)
    assert result.exit_code == 1
    assert "a.jsonl, line 10" in result.output
    assert result.output.count("\n") == 1
    result = fsdpq(tmp_path / "a.jsonl", "-o", tmp_path / "out", "--skip-bad", "--json", "--anew")
    found = json.loads(result.stdout)
    assert (found["documents"], found["skipped"]) == (100, 2)


def test_texts_are_documents(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(name * 3)
    (tmp_path / "empty.txt").touch()
    result = fsdpq(tmp_path / "*.txt", "-o", tmp_path / "out")
    assert "9 tokens of 3 documents in 1 shards" in result.output
    assert row_of(tmp_path / "out") == b"aaabbbccc"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["{a}"], 2, "-o/--output: is required"),
        (["{a}", "{t}", "-o", "{o}"], 2, "partly jsonl and partly text_files"),
        (["{a}/nothing", "-o", "{o}"], 1, "nothing matches"),
        (["{a}", "-o", "{o}", "--python", "/no/python"], 1, "/no/python"),
        (["{a}", "-o", "{o}", "--tokenizer", "/no/tokenizer"], 1, "tokenizer: /no/tokenizer"),
        (["{a}", "--check"], 1, "is no folder of token shards"),
    ],
)
def test_what_is_refused(tmp_path: Path, words: list[str], code: int, text: str) -> None:
    write_lines(tmp_path / "a.jsonl", 3)
    (tmp_path / "t.txt").write_text("text")
    names = {"a": tmp_path / "a.jsonl", "t": tmp_path / "t.txt", "o": tmp_path / "out"}
    result = fsdpq(*(word.format(**names) for word in words))
    assert result.exit_code == code
    assert text in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_and_a_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<s>": 0, "</s>": 1, "one": 2, "two": 3, "?": 4}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer.enable_truncation(2)  # must not be obeyed
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    rows = datasets.Dataset.from_dict({"body": ["one two one", "", "three two"]})
    rows.save_to_disk(str(tmp_path / "rows"))
    index = prepare(
        request(tmp_path / "rows", kind="dataset", field="body", tokenizer=str(tmp_path)),
        tmp_path / "out",
        workers=1,
        python=sys.executable,
    )
    assert (index.tokens, index.documents, index.vocab_size) == (9, 2, 5)
    assert row_of(tmp_path / "out") == bytes([0, 2, 3, 2, 1, 0, 4, 3, 1])
    wrong = request(tmp_path / "rows", kind="dataset")
    with pytest.raises(SpecError, match=r"has no column 'text' \(there are: body\)"):
        prepare(wrong, tmp_path / "other", workers=1, python=sys.executable)


def test_how_far_it_is() -> None:
    progress = Progress("bytes", 4_000_000, done=3_000_000, before=1_000_000, tokens=7, began=0)
    assert describe(progress, 2.0) == " 75%, 7 tokens, 1.0 MB/s, 1 s left"
    nothing = Progress("rows", 10, began=0)
    assert describe(nothing, 2.0) == "  0%, 0 tokens, 0 rows/s"


def test_a_worker_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path / "a.jsonl", 3)
    killer = tmp_path / "python"
    killer.write_text("#!/bin/sh\nread line\nkill -9 $$\n")
    killer.chmod(0o755)
    with pytest.raises(SpecError, match="was killed, most likely for want of memory"):
        preparing.prepare(
            request(tmp_path / "a.jsonl"), tmp_path / "out", workers=1, python=str(killer)
        )


@pytest.mark.parametrize("name", ["link", "a.jsonl"])
def test_a_target_that_is_no_folder(tmp_path: Path, name: str) -> None:
    write_lines(tmp_path / "a.jsonl", 3)
    (tmp_path / "link").symlink_to("nowhere")
    result = fsdpq(tmp_path / "a.jsonl", "-o", tmp_path / name)
    assert result.exit_code == 1
    assert f"{name}: is a " in result.output
    assert not list(tmp_path.glob("*.part"))


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", 3)

    def append(progress: Progress) -> None:
        with (tmp_path / "a.jsonl").open("a") as file:
            file.write("{}\n")

    with pytest.raises(SpecError, match=r"a\.jsonl has .* bytes and had .*; it changed while"):
        make(tmp_path / "a.jsonl", tmp_path / "out", tell=append)
    assert not (tmp_path / "out").exists()


def test_ended_by_a_signal_it_says_what_stays(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", 3)
    waiting = tmp_path / "python"
    waiting.write_text(f"#!/bin/sh\n: > {tmp_path}/asked\nread line\nread line\n")
    waiting.chmod(0o755)
    argv = [sys.executable, "-m", "orchestrator", "prepare", str(tmp_path / "a.jsonl")]
    process = subprocess.Popen(
        [*argv, "-o", str(tmp_path / "out"), "--python", str(waiting)],
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "asked").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.terminate()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143
    assert said.strip().startswith("interrupted; what is finished stays in")
