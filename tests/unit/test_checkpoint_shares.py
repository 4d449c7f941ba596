"""Who verifies which files of a checkpoint."""

from collections import Counter

import pytest

from orchestrator.checkpoint.shares import share_of

OTHERS = [".metadata", "notes/extra.bin"]


def written(*, ranks: int, files: int) -> list[str]:
    """The names as a listing gives them: __10_0 before __1_0, and .metadata first."""
    names = [f"__{rank}_{file}.distcp" for rank in range(ranks) for file in range(files)]
    return sorted([*OTHERS[:1], *names])


@pytest.mark.parametrize("ranks", [1, 2, 16])
def test_each_rank_takes_what_it_wrote(ranks: int) -> None:
    names = written(ranks=ranks, files=4)
    for rank in range(ranks):
        share = share_of(names, rank=rank, world_size=ranks)
        assert {name for name in share if name != ".metadata"} == {
            f"__{rank}_{file}.distcp" for file in range(4)
        }


@pytest.mark.parametrize("world_size", [1, 3, 7, 16, 64])
def test_each_file_is_taken_once_and_nobody_has_much_more(world_size: int) -> None:
    names = [*written(ranks=12, files=3), OTHERS[1]]
    shares = [share_of(names, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert Counter(name for share in shares for name in share) == Counter(names)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
