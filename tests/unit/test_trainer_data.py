"""Sampler, corpus, schedule and metrics: quick, and without torch, but they need numpy."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from orchestrator.errors import SpecError  # noqa: E402
from orchestrator.spec.train import TrainSpec  # noqa: E402
from orchestrator.trainer.corpus import find_files, open_corpus  # noqa: E402
from orchestrator.trainer.metrics import MetricsLog  # noqa: E402
from orchestrator.trainer.sampler import Sampler, permute, rank_positions  # noqa: E402
from orchestrator.trainer.schedule import lr_factor  # noqa: E402


def ids(sampler: Sampler, positions: Any) -> list[int]:
    return [int(i) for i in sampler.ids(np.asarray(positions, dtype=np.int64))]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097])
def test_each_epoch_is_a_permutation(size: int) -> None:
    orders = [
        ids(Sampler(size, seed=3), range(epoch * size, (epoch + 1) * size)) for epoch in range(3)
    ]
    assert all(sorted(order) == list(range(size)) for order in orders)
    if size > 5:
        assert orders[0] != orders[1] != orders[2]
        assert orders[0] != ids(Sampler(size, seed=4), range(size))


def test_order_looks_random() -> None:
    size = 10_000
    order = np.array(ids(Sampler(size, seed=0), range(size)))
    assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 0.05
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
    assert np.abs(np.diff(order)).min() >= 1
    assert (np.abs(np.diff(order)) == 1).mean() < 0.01


def test_order_never_changes() -> None:
    """A checkpoint's position means nothing under another order: these numbers are for ever."""
    assert ids(Sampler(100, seed=0), range(8)) == FIRST
    assert ids(Sampler(100, seed=7), range(100, 104)) == SECOND


FIRST = [48, 40, 33, 20, 3, 77, 52, 93]
SECOND = [84, 79, 54, 53]


def test_large_corpora_cost_nothing() -> None:
    far = np.array([10**12 + 5, 3], dtype=np.int64)
    found = Sampler(10**11, seed=1).ids(far)
    assert ((found >= 0) & (found < 10**11)).all()


def test_permute_agrees_on_single_indices() -> None:
    whole = permute(np.arange(50), size=50, seed=1, epoch=2)
    each = [int(permute(np.array([i]), size=50, seed=1, epoch=2)[0]) for i in range(50)]
    assert each == [int(i) for i in whole]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_step_is_shared_out_whole(world_size: int, micro_batch: int) -> None:
    parts = [
        rank_positions(
            240, global_batch=24, micro_batch=micro_batch, rank=rank, world_size=world_size
        )
        for rank in range(world_size)
    ]
    assert {len(part) for part in parts} == {24 // micro_batch // world_size}
    taken = [int(p) for part in parts for batch in part for p in batch]
    assert sorted(taken) == list(range(240, 264))


def test_every_sample_once_however_the_world_changes() -> None:
    size, position, seen = 60, 0, []
    sampler = Sampler(size, seed=5)
    for world_size in (1, 2, 4, 2, 1, 4, 4, 2, 1, 2):  # 10 steps of 12: two epochs
        for rank in range(world_size):
            for batch in rank_positions(
                position, global_batch=12, micro_batch=3, rank=rank, world_size=world_size
            ):
                seen += ids(sampler, batch)
        position += 12
    assert sorted(seen[:size]) == sorted(seen[size:]) == list(range(size))


# -- corpus --------------------------------------------------------------------------------------


def test_windows_run_across_files(tmp_path: Path) -> None:
    texts = [b"abcdefg", b"", b"h", b"ijklmnopq"]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_bytes(text)
    corpus = open_corpus((str(tmp_path),), seq_len=4)
    row = b"".join(texts)
    assert corpus.num_samples == (len(row) - 1) // 4 == 4
    windows = corpus.windows(np.arange(4))
    assert windows.shape == (4, 5)
    assert [bytes(w.astype(np.uint8)) for w in windows] == [row[i : i + 5] for i in (0, 4, 8, 12)]


def test_folders_globs_and_files(tmp_path: Path) -> None:
    (tmp_path / "inner" / ".git").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "inner/c.txt", "inner/.git/x", ".hidden", "d.md"):
        (tmp_path / name).write_text("text")

    def names(*patterns: str) -> list[str]:
        found = find_files(tuple(str(tmp_path / pattern) for pattern in patterns))
        return [str(path.relative_to(tmp_path)) for path in found]

    assert names("*.txt") == ["a.txt", "b.txt"]
    assert names(".") == ["a.txt", "b.txt", "d.md", "inner/c.txt"]
    assert names("**/*.txt", "a.txt") == ["a.txt", "b.txt", "inner/c.txt"]
    with pytest.raises(SpecError, match="nothing matches"):
        names("*.txt", "none*")


def test_too_little_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert open_corpus((str(tmp_path),), seq_len=4).num_samples == 1
    with pytest.raises(SpecError, match="too few"):
        open_corpus((str(tmp_path),), seq_len=5)


def test_fingerprint_tells_changes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234567890")
    first = open_corpus((str(tmp_path),), seq_len=4).fingerprint
    assert first == open_corpus((str(tmp_path / "a"),), seq_len=4).fingerprint
    assert first != open_corpus((str(tmp_path),), seq_len=3).fingerprint
    (tmp_path / "b").write_bytes(b"1")
    assert first != open_corpus((str(tmp_path),), seq_len=4).fingerprint


# -- schedule and metrics ------------------------------------------------------------------------


def spec(**changes: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "model": {"config": {"model_type": "llama"}},
            "data": {"text_files": ["x"], "seq_len": 8},
            "steps": 20,
            "global_batch": 1,
            **changes,
        }
    )


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 5, 20, 50])
def test_schedule(kind: str, warmup: int) -> None:
    wanted = spec(lr_schedule=kind, warmup_steps=warmup, min_lr_ratio=0.1)
    factors = [lr_factor(done, spec=wanted) for done in range(21)]
    assert all(0 < factor <= 1 for factor in factors)
    if warmup < 20:
        assert factors[warmup] == 1.0
        assert factors[19] == pytest.approx(1.0 if kind == "constant" else 0.1)
        assert factors[20] == factors[19]
    assert all(a < b for a, b in pairwise(factors[: min(warmup, 20)]))


def test_half_a_line_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).write(step=1, loss=0.1 + 0.2)
    with path.open("a") as file:
        file.write('{"step": 2, "lo')
    MetricsLog(path).write(step=2, loss=1e-300)
    lines = path.read_text().splitlines()
    assert json.loads(lines[0])["loss"] == 0.1 + 0.2
    assert json.loads(lines[2]) == {"step": 2, "loss": 1e-300}


def test_a_line_is_written_once_more(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in (1, 2):
        log.write(attempt=1, step=step, loss=0.1 * step, step_s=2.0, blocked_s=1.0)
    with path.open("a") as file:
        file.write('{"torn\n5\n')
    log.add(1, eval={"loss": 3.0})
    log.add(7, eval={"loss": 4.0})
    lines = path.read_text().splitlines()
    assert len(lines) == 5
    assert json.loads(lines[-1]) == {
        "attempt": 1, "step": 1, "loss": 0.1, "step_s": 0.0, "blocked_s": 0.0,
        "eval": {"loss": 3.0}, "again": True,
    }  # fmt: skip
