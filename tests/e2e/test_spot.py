"""A reclaim by a cloud, through real torchruns: two of them, as on two nodes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from orchestrator.runstore import store
from tests.clouds import ScheduledEvents, serve
from tests.two_nodes import TwoNodes

pytest.importorskip("torch")
pytestmark = pytest.mark.e2e


def test_a_reclaim_of_one_node_checkpoints_all(tmp_path: Path) -> None:
    counter = ["100000", "0.05", "1000000"]
    job = TwoNodes(tmp_path, cloud="azure", python=sys.executable, counter=counter)
    quiet, doomed = ScheduledEvents(name="vm0"), ScheduledEvents(name="vm1")
    # All machines of a scale set hear of the events of all.
    quiet.schedule("Preempt", "vm1")
    with serve(quiet) as here, serve(doomed) as there, job.start(here.url, there.url) as nodes:
        deadline = time.monotonic() + 120
        while not job.stepped():
            assert time.monotonic() < deadline, "no step is done"
            assert [node.poll() for node in nodes] == [None, None]
            time.sleep(0.1)
        doomed.schedule("Preempt", "vm1")
        said = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    status = store.read_json(job.attempt.status) or {}
    assert (status["outcome"], status["reason"]) == ("stopped", "AZURE-PREEMPT")
    saved = job.run.checkpoints / f"step-{status['step']}"
    assert {path.name for path in saved.glob("rank-*.json")} == {"rank-0.json", "rank-1.json"}
    assert [path.name for path in job.attempt.root.glob("notice.*")] == ["notice.1"]
    assert {method for method, _ in here.asked + there.asked} == {"GET"}
