"""Lines that people posted: what is said of them, also after what happens to logs on their way."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.fabric.diagnosis import Diagnosis
from orchestrator.fabric.examine import ends, examine
from orchestrator.fabric.sources import of_paths

FILE = Path(__file__).parents[1] / "data" / "nccl" / "excerpts.yaml"
EXCERPTS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SEEDS = range(6)
_HOST = re.compile(r"^(\[[^\]]*\] )?[^\s:\[]+:\d+:\d+ \[\d+\] (?=.*NCCL )")

each = pytest.mark.parametrize("excerpt", EXCERPTS, ids=[item["id"] for item in EXCERPTS])


def diagnosed(path: Path, text: str | bytes) -> Diagnosis:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    sources = of_paths([path]).sources
    return examine(sources, None, more=ends(sources))


def check(found: Diagnosis, expect: dict[str, Any], *, host: bool = True) -> None:
    """Compare with what is expected; ``host`` is whether the log still has the name of one."""
    told = {**found.to_json(), "layers": list(found.layers)}
    cause = found.cause or {"kind": None, "rank": None, "host": None, "advice": ""}
    wanted = dict(expect)
    advice = wanted.pop("advice", "")
    for key in ("kind", "rank", *(["host"] if host else [])):
        assert cause[key] == wanted[key], (key, cause)
    for key in wanted.keys() - {"kind", "rank", "host"}:
        assert told[key] == wanted[key], key
    assert advice in cause["advice"]


@each
def test_what_is_said_of_an_excerpt(excerpt: dict[str, Any], tmp_path: Path) -> None:
    found = diagnosed(tmp_path / "job.log", "\n".join(excerpt["lines"]) + "\n")
    check(found, excerpt["expect"])
    if found.cause:
        told = found.cause["line"]
        assert any(told in line or line in told for line in excerpt["lines"])


def test_every_excerpt_has_its_source() -> None:
    assert len(EXCERPTS) >= 21
    assert all(item["source"] for item in EXCERPTS)


# --- on their way -----------------------------------------------------------------------------

Change = Callable[[list[str], random.Random], str]


def colours(lines: list[str], rng: random.Random) -> str:
    paint = (f"\x1b[{rng.choice(('31', '1;33', '38;5;208'))}m" for _ in iter(int, 1))
    return "\n".join(f"{next(paint)}{line}\x1b[0m\x1b[K" for line in lines) + "\n"


def tasks(lines: list[str], rng: random.Random) -> str:
    return "\n".join(f"{rng.randrange(16):>2}: {line}" for line in lines) + "\n"


def tee(lines: list[str], rng: random.Random) -> str:
    return "\n".join(f"[default{rng.randrange(8)}]:{line}" for line in lines) + "\n"


def tasks_and_tee(lines: list[str], rng: random.Random) -> str:
    return tasks([f"[trainer{rng.randrange(8)}]: {line}" for line in lines], rng)


def dates(lines: list[str], rng: random.Random) -> str:
    clock = sorted(rng.uniform(0, 59) for _ in lines)
    return "".join(
        f"2026-03-13T22:26:{at:09.6f}Z {line}\r\n" for at, line in zip(clock, lines, strict=True)
    )


def noise(lines: list[str], rng: random.Random) -> str:
    """Other ranks' lines in between: training, progress bars, NULs, what is no UTF-8."""
    others = (
        "step {n} loss 2.{n} tokens/s 51192",
        "\r 45%|####      | {n}/1000 [00:10<00:12, 44.9it/s]",
        "[default3]:epoch {n}: NCCL is quick today",
        "\x00\x00\x00\x00 {n}",
        "node-1:79:121 [4] NCCL INFO Channel 0{n}/0 : 7[7] -> 6[6] via P2P/CUMEM/read",
        "caf\udce9 {n}",
    )
    out = []
    for line in lines:
        out += [rng.choice(others).format(n=rng.randrange(9)) for _ in range(rng.randrange(4))]
        out.append(line)
    return "\n".join(out) + "\n"


def cut(lines: list[str], rng: random.Random) -> str:
    """Pieces of lines beside the whole ones, as writes that were torn leave them."""
    out = []
    for line in lines:
        place = rng.randrange(1, len(line))
        out.append(rng.choice((line[:place], line[place:])))
        out.append(line)
    return "\n".join(out) + "\n" + lines[-1][: rng.randrange(1, len(lines[-1]))]


def glued(lines: list[str], rng: random.Random) -> str:
    """What two ranks write at once, without a newline between them, as some lines are."""
    writers = {
        match[0] for line in lines if (match := re.match(r"[^\s:\[]+:\d+:\d+ \[\d+\]", line))
    }
    who = f"node-7:{rng.randrange(1000, 2000)}:9 [0]"
    torn = f"{who} NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM"
    return "".join(
        f"{one} NCCL INFO NCCL_DEBUG set by environment to INFO\n" for one in sorted(writers)
    ) + "".join(
        f"{torn[: rng.randrange(20, len(torn))] if rng.random() < 0.4 and 'NCCL' in line else ''}"
        f"{line}\n"
        for line in lines
    )


def interleaved(lines: list[str], rng: random.Random) -> str:
    """Processes in any order; each one's own lines keep theirs."""
    queues: dict[str, list[str]] = {}
    for line in lines:
        match = re.match(r"[^\s:]+:\d+", line)
        queues.setdefault(match[0] if match else "", []).append(line)
    out = []
    while waiting := [queue for queue in queues.values() if queue]:
        out.append(rng.choice(waiting).pop(0))
    return "\n".join(out) + "\n"


def everything(lines: list[str], rng: random.Random) -> str:
    text = noise(tee(lines, rng).splitlines(), rng)
    pieces = cut([line for line in text.split("\n") if line], rng)
    return colours(tasks(pieces.split("\n"), rng).split("\n"), rng)


def no_newline(lines: list[str], rng: random.Random) -> str:
    return "\n".join(lines)


CHANGES: list[Change] = [
    *(colours, tasks, tee, tasks_and_tee, dates, noise, cut, glued, interleaved, no_newline),
    everything,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_same_is_said_after(change: Change, tmp_path: Path) -> None:
    for excerpt, seed in product(EXCERPTS, SEEDS):
        text = change(list(excerpt["lines"]), random.Random(seed))
        found = diagnosed(tmp_path / "job.log", text.encode("utf-8", "surrogateescape"))
        try:
            check(found, excerpt["expect"])
        except AssertionError as problem:
            raise AssertionError(f"{excerpt['id']}, seed {seed}: {problem}\n{text}") from None


@each
def test_the_same_is_said_without_a_host(excerpt: dict[str, Any], tmp_path: Path) -> None:
    lines = [_HOST.sub(r"\1", line) for line in excerpt["lines"]]
    found = diagnosed(tmp_path / "job.log", "\n".join(lines) + "\n")
    check(found, excerpt["expect"], host=False)


@each
def test_a_file_of_each_process_names_the_host_that_lines_lack(
    excerpt: dict[str, Any], tmp_path: Path
) -> None:
    text = "\n".join(excerpt["lines"])
    found = re.findall(r"^(?:\[[^\]]*\] )?([^\s:\[]+):(\d+):\d+ \[", text, re.MULTILINE)
    if len({host for host, _ in found}) != 1:
        pytest.skip("not of one host")
    lines = [_HOST.sub(r"\1", line) for line in excerpt["lines"]]
    name = f"{found[0][0]}.{found[0][1]}.log"
    told = diagnosed(tmp_path / name, "\n".join(lines) + "\n")
    # A line that never had a host has one now.
    host = excerpt["expect"]["host"] or (found[0][0] if excerpt["expect"]["kind"] else None)
    check(told, {**excerpt["expect"], "host": host})


@each
def test_half_of_a_letter_breaks_nothing(excerpt: dict[str, Any], tmp_path: Path) -> None:
    text = "\n".join(excerpt["lines"]).encode() + b"\n\xff\xfe\xc3\n"
    for start in range(0, 60, 7):  # the file begins in the middle of a line
        diagnosed(tmp_path / "job.log", text[start:])
