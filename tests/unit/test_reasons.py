"""What is said about a job that waits."""

from __future__ import annotations

import pytest

from orchestrator.decide.reasons import advice


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("PartitionConfig", "with fewer"),
        ("PartitionNodeLimit", "with fewer"),
        ("PartitionTimeLimit", "shorter `time_limit`"),
        ("AssocGrpGRES", "waits for them to end"),
        ("AssocGrpCPUMinutesLimit", "used up"),
        ("QOSMaxNodePerJobLimit", "ever gives to one job"),
        ("QOSMaxJobsPerUserLimit", "waits for them to end"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "reserved"),
        ("Resources", ""),
        ("", ""),
    ],
)
def test_advice(reason: str, words: str) -> None:
    said = advice(reason)
    assert words in said
    assert bool(said) == bool(words)
