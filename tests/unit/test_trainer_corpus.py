"""Shards as rows, several sources, mixtures, documents: without torch, but they need numpy."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from orchestrator.errors import SpecError  # noqa: E402
from orchestrator.tokens.index import Index, ShardEntry  # noqa: E402
from orchestrator.tokens.shard import ShardWriter  # noqa: E402
from orchestrator.trainer.corpus import (  # noqa: E402
    Joined,
    join,
    open_corpus,
    open_shards,
)
from orchestrator.trainer.mixture import BLOCK, Mixture, order_of, places  # noqa: E402
from orchestrator.trainer.packing import (  # noqa: E402
    IGNORED,
    count_targets,
    document_ids,
    positions_of,
    take,
)
from orchestrator.trainer.row import TokenRow  # noqa: E402
from orchestrator.trainer.sampler import Sampler, rank_positions  # noqa: E402


def shards(path: Path, *files: list[list[int]], width: int = 2) -> Path:
    """Write token shards; each of ``files`` is a list of documents."""
    path.mkdir()
    entries = []
    for number, documents in enumerate(files):
        writer = ShardWriter(width)
        for document in documents:
            writer.add(document)
        header, digest = writer.write(path / f"{number}.bin")
        entries.append(
            ShardEntry(
                file=f"{number}.bin",
                tokens=header.tokens,
                documents=header.documents,
                largest=header.largest,
                digest=digest,
            )
        )
    index = Index(width=width, vocab_size=70_000, tokenizer="t", shards=tuple(entries))
    (path / "index.json").write_text(json.dumps(index.to_json()))
    return path


def text(path: Path, content: bytes, *, seq_len: int = 4) -> TokenRow:
    path.write_bytes(content)
    return open_corpus((str(path),), seq_len=seq_len)


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 4])
def test_shards_are_one_row(tmp_path: Path, width: int) -> None:
    top = {1: 255, 2: 65535, 4: 128_000}[width]
    path = shards(tmp_path / "s", [[1, 2, 3], [4]], [[5, 6, 7, 8, 9, top]], width=width)
    row = open_shards(path, seq_len=3)
    assert (row.num_samples, row.largest) == (3, top)
    assert row.windows(np.arange(3)).tolist() == [[1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 9, top]]
    assert row.windows(np.arange(1)).dtype == np.int64


def test_where_documents_begin(tmp_path: Path) -> None:
    row = open_shards(shards(tmp_path / "s", [[1, 2, 3], [4]], [[5, 6], [7, 8, 9]]), seq_len=4)
    begins = row.beginnings(np.arange(2)).astype(int)
    # Tokens 1 2 3 | 4 | 5, and 5 6 | 7 8 9: the first one always counts.
    assert begins.tolist() == [[1, 0, 0, 1, 1], [1, 0, 1, 0, 0]]


def test_beginnings_agree_with_a_plain_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = [
        [[1] * int(n) for n in rng.integers(1, 9, size=int(rng.integers(1, 6)))] for _ in range(9)
    ]
    row = open_shards(shards(tmp_path / "s", *files), seq_len=5)
    plain = [int(i == 0) for file in files for document in file for i in range(len(document))]
    for sample, begins in enumerate(row.beginnings(np.arange(row.num_samples)).astype(int)):
        wanted = plain[sample * 5 : sample * 5 + 6]
        assert begins.tolist() == [1, *wanted[1:]]


def test_texts_are_documents(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/a").write_bytes(b"abc")
    (tmp_path / "t/b").write_bytes(b"defgh")
    row = open_corpus((str(tmp_path / "t"),), seq_len=6)
    assert row.beginnings(np.arange(1)).astype(int).tolist() == [[1, 0, 0, 1, 0, 0, 0]]


def test_more_files_than_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    (tmp_path / "t").mkdir()
    for number in range(600):
        (tmp_path / f"t/{number:03}").write_bytes(bytes([number % 251]) * 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        row = open_corpus((str(tmp_path / "t"),), seq_len=3)
        found = row.windows(np.arange(row.num_samples))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found[:, 0].tolist() == [number % 251 for number in range(599)]


def test_a_shard_that_was_cut_off_later(tmp_path: Path) -> None:
    path = shards(tmp_path / "s", [[1, 2, 3]], [[4, 5, 6, 7]])
    lazy = open_shards(path, seq_len=3, check=False)
    raw = (path / "1.bin").read_bytes()
    (path / "1.bin").write_bytes(raw[:-4])
    with pytest.raises(SpecError, match=r"1\.bin: has 76 bytes, but its header says 80"):
        open_shards(path, seq_len=3)
    with pytest.raises(SpecError, match=r"1\.bin: has 76 bytes"):
        lazy.windows(np.array([1]))


def test_too_few_tokens(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="3 tokens are too few for one sample of 3 tokens"):
        open_shards(shards(tmp_path / "s", [[1, 2, 3]]), seq_len=3)


def test_fingerprints(tmp_path: Path) -> None:
    first = text(tmp_path / "a", b"abcdefghij").fingerprint
    assert first == text(tmp_path / "b", b"abcdefghij").fingerprint
    assert first != text(tmp_path / "c", b"abcdefghiX").fingerprint  # of the same length
    lengths = first.partition(":")[0]
    assert lengths == text(tmp_path / "d", b"XXXXXXXXXX").fingerprint.partition(":")[0]
    one = open_shards(shards(tmp_path / "s", [[1, 2, 3, 4, 5]]), seq_len=3).fingerprint
    two = open_shards(shards(tmp_path / "t", [[1, 2], [3, 4, 5]]), seq_len=3).fingerprint
    assert one != two  # documents count


def test_bytes_of_a_shard_that_changed_are_seen(tmp_path: Path) -> None:
    path = shards(tmp_path / "s", [[1, 2, 3, 4, 5]])
    before = open_shards(path, seq_len=3)
    raw = bytearray((path / "0.bin").read_bytes())
    raw[66] ^= 1  # the second token
    (path / "0.bin").write_bytes(raw)
    after = open_shards(path, seq_len=3)
    assert before.fingerprint != after.fingerprint
    assert before.fingerprint.split(":")[:2] == after.fingerprint.split(":")[:2]
    assert after.sources == (path / "index.json", path / "0.bin")


def test_huge_weights_are_weights() -> None:
    assert places([1e308, 1e308], block=10) == (5, 5)
    assert places([3e-300, 1e-300], block=10) == (8, 2)


# -- several sources -------------------------------------------------------------------------------


def test_one_source_stays_what_it_is(tmp_path: Path) -> None:
    row = text(tmp_path / "a", b"abcdefghij")
    assert join([row], [None]) is row
    assert isinstance(order_of(row, seed=3), Sampler)


def test_samples_are_numbered_through(tmp_path: Path) -> None:
    one, two = text(tmp_path / "a", b"abcdefghij"), text(tmp_path / "b", b"ABCDEFGHIJKLM")
    both = join([one, two], [None, None])
    assert isinstance(both, Joined)
    assert both.num_samples == 2 + 3
    found = both.windows(np.array([4, 0, 2]))
    assert [bytes(w.astype(np.uint8)) for w in found] == [b"IJKLM", b"abcde", b"ABCDE"]
    assert both.where(4) == f"{tmp_path / 'b'}, after token 8"
    assert isinstance(order_of(both, seed=3), Sampler)
    assert both.fingerprint != join([two, one], [None, None]).fingerprint


def mixed(*weights: float, sizes: tuple[int, ...] = (50, 7, 1000), seed: int = 0) -> Mixture:
    return Mixture(sizes, places(weights), seed)


def owners(mixture: Mixture, start: int, count: int) -> Any:
    ids = mixture.ids(np.arange(start, start + count))
    return np.searchsorted(np.cumsum(mixture.sizes), ids, side="right")


def test_shares_hold_in_every_batch() -> None:
    mixture = mixed(5, 3, 2)
    for start in (0, 640, 10 * BLOCK - 32, 10**12):
        counts = Counter(owners(mixture, start, 64).tolist())
        for source, share in enumerate((32, 19.2, 12.8)):
            assert abs(counts[source] - share) <= 2, (start, counts)


def test_each_source_goes_through_its_own_epochs() -> None:
    mixture = mixed(5, 3, 2)
    ids = mixture.ids(np.arange(2000))
    small = ids[(ids >= 50) & (ids < 57)]
    for epoch in range(len(small) // 7):
        assert sorted(small[epoch * 7 : epoch * 7 + 7].tolist()) == [*range(50, 57)]


def test_epochs_go_on_over_blocks() -> None:
    """What a source has had before a block is known without looking at the block."""
    mixture = Mixture((97, 89), (6, 4), 1)  # blocks of ten
    ids = mixture.ids(np.arange(970))
    first = ids[ids < 97]
    assert sorted(first[:97].tolist()) == [*range(97)]
    assert sorted(first[97:194].tolist()) == [*range(97)]


def test_a_position_does_not_depend_on_who_asks() -> None:
    mixture = mixed(1, 1, 1, seed=4)
    whole = mixture.ids(np.arange(BLOCK - 24, BLOCK + 24))
    found = np.full(48, -1)
    for world_size in (1, 2, 3):
        for rank in range(world_size):
            for positions in rank_positions(
                BLOCK - 24, global_batch=48, micro_batch=4, rank=rank, world_size=world_size
            ):
                found[positions - (BLOCK - 24)] = mixture.ids(positions)
        assert found.tolist() == whole.tolist()


def test_mixtures_never_change() -> None:
    """A checkpoint's position means nothing in another order: these numbers are for ever."""
    assert mixed(5, 3, 2).ids(np.arange(8)).tolist() == MIXED
    assert mixed(5, 3, 2).ids(np.arange(BLOCK, BLOCK + 4)).tolist() == LATER


MIXED = [50, 1, 41, 683, 55, 15, 27, 304]
LATER = [23, 234, 51, 25]


def test_weights_become_places() -> None:
    assert sum(places([0.1, 0.7, 0.2])) == BLOCK
    assert places([1, 1]) == (BLOCK // 2, BLOCK // 2)
    with pytest.raises(SpecError, match=r"data\.sources\.1\.weight: 1e-06 is less than one sample"):
        places([1, 1e-6])


def test_weights_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    rows = [text(tmp_path / "a", b"abcdefghij"), text(tmp_path / "b", b"ABCDEFGHIJKLM")]
    assert isinstance(order_of(join(rows, [1, 2]), seed=0), Mixture)
    assert join(rows, [1, 2]).fingerprint != join(rows, [1, 3]).fingerprint


# -- documents in a sample -------------------------------------------------------------------------


def test_streams_are_what_they_always_were(tmp_path: Path) -> None:
    row = text(tmp_path / "a", b"abcdefghij")
    found = take(row, np.array([1]), documents=False)
    assert found.inputs.tolist() == [[*b"efgh"]]
    assert found.targets.tolist() == [[*b"fghi"]]
    assert found.positions is None


def test_documents_keep_to_themselves(tmp_path: Path) -> None:
    row = open_shards(shards(tmp_path / "s", [[1, 2, 3], [4], [5, 6, 7, 8, 9]]), seq_len=6)
    found = take(row, np.array([0]), documents=True)
    assert found.inputs.tolist() == [[1, 2, 3, 4, 5, 6]]
    assert found.targets.tolist() == [[2, 3, IGNORED, IGNORED, 6, 7]]
    assert found.positions is not None
    assert found.positions.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert document_ids(found.positions).tolist() == [[0, 0, 0, 1, 2, 2]]
    assert count_targets(row, np.array([0]), documents=True) == 4
    assert count_targets(row, np.array([0]), documents=False) == 6


def test_positions() -> None:
    begins = np.array([[1, 1, 0, 0, 1], [1, 0, 0, 0, 0]], bool)
    assert positions_of(begins).tolist() == [[0, 0, 1, 2, 0], [0, 1, 2, 3, 4]]
