"""What is done about places and sizes, and what is left where a watcher is killed in between."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.decide import Exclude, Over, Replace, StartNow, Wait
from orchestrator.errors import SubmitError
from orchestrator.judging.classify import Cause, Verdict
from orchestrator.rundir.attempt import Hang
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import facts, store
from orchestrator.scheduler import JobState
from orchestrator.submitting import starting
from orchestrator.watching import control, watch
from orchestrator.watching.watch import Outcome

from .builders import NOW, POLICY, make_run, rank_error
from .fake_cluster import Cluster

S = JobState


class Killed(BaseException):
    """The watcher was killed here."""


def once(run: RunLayout) -> Outcome:
    (outcome,) = watch.once([(run, store.load_plan(run))])
    return outcome


def kinds(run: RunLayout) -> list[str]:
    return [event["kind"] for event in store.events(run)][2:]


def elastic(folder: Path, *, at: dict[str, Any] | None = None, **changes: Any) -> RunLayout:
    """Make a run of 4, 3 or 2 nodes that waits for ten minutes."""
    policy = dataclasses.replace(POLICY, sizes=(4, 3, 2), patience_s=600.0, **changes)
    run = make_run(folder / "elastic", job_name="llama-1", nodes=4, policy=policy, **(at or {}))
    store.append(run, "submitting")
    store.append(run, "submitted", job_id="7")
    return run


def fail_on(run: RunLayout, number: int, node: str) -> None:
    """Leave an attempt whose rank on ``node`` raised."""
    folder = run.attempt(number)
    folder.errors.mkdir(parents=True)
    start = {"job_id": "7", "restart": number - 1, "nodes": "n[1-2]", "started_at": NOW - 100}
    folder.start.write_text(json.dumps(start))
    error = dataclasses.asdict(rank_error(node=node))
    (folder.errors / "rank-3.json").write_text(json.dumps(error))


# --- elastic ----------------------------------------------------------------------------------


def test_a_starved_run_gets_a_smaller_job(cluster: Cluster, tmp_path: Path) -> None:
    run = elastic(tmp_path)
    cluster.put(state=S.PENDING, reason="Resources", submit=NOW - 700)
    outcome = once(run)
    assert isinstance(outcome.action, Replace)
    assert cluster.done == [("cancel", "7"), ("submit", "--nodes=3")]
    assert kinds(run) == ["restart", "stopping", "submitting", "submitted"]
    assert isinstance(once(run).action, Wait)


def test_a_smaller_job_asks_for_fewer_switches(cluster: Cluster, tmp_path: Path) -> None:
    run = elastic(tmp_path, at={"switches": ((3, "1@00:10:00"), (2, "1@00:10:00"))})
    cluster.put(state=S.PENDING, reason="Resources", submit=NOW - 700)
    once(run)
    assert cluster.done[1:] == [("submit", "--nodes=3", "--switches=1@00:10:00")]


def test_it_grows_back_when_it_is_put_back(cluster: Cluster, tmp_path: Path) -> None:
    run = elastic(tmp_path)
    cluster.put(state=S.PENDING, reason="Resources", submit=NOW - 700)
    once(run)
    cluster.put("8", S.PENDING, reason="BeginTime", restart=1, submit=NOW - 3)
    once(run)
    assert cluster.done[2:] == [("cancel", "8"), ("submit", "--nodes=4")]


KILLS: list[Callable[[Cluster, pytest.MonkeyPatch], None]] = [
    lambda cluster, patch: patch.setattr(cluster, "cancel", _killed),
    lambda cluster, patch: patch.setattr(starting, "submit", _killed),
    lambda cluster, patch: patch.setattr(starting, "start", _killed),
]


def _killed(*_: Any, **__: Any) -> Any:
    raise Killed


@pytest.mark.parametrize("kill", KILLS, ids=["before the end", "after it", "before sbatch"])
def test_a_watcher_killed_while_it_replaces_a_job_loses_nothing(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: Any
) -> None:
    run = elastic(tmp_path)
    cluster.put(state=S.PENDING, reason="Resources", submit=NOW - 700)
    with monkeypatch.context() as patch:
        kill(cluster, patch)
        with pytest.raises(Killed):
            once(run)
    for claim in run.claims.iterdir():  # whoever made it is gone
        claim.write_text(json.dumps({**json.loads(claim.read_text()), "start": "1"}))
    # sbatch may have been reached: then its job gets time to turn up.
    monkeypatch.setattr("time.time", lambda: NOW + 1000)
    for _ in range(4):
        once(run)
    submissions = [what for what in cluster.done if what[0] == "submit"]
    assert submissions == [("submit", "--nodes=3")]
    assert [job.job_id for job in cluster.found] == ["8"]


# --- bad nodes --------------------------------------------------------------------------------


def test_a_node_that_fails_twice_is_left_out_of_the_third_attempt(
    cluster: Cluster, run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blame(_job: object, attempt: Any) -> Verdict:
        suspects = (attempt.error.node,) if attempt and attempt.error else ()
        return Verdict(Cause.WORKER_ERROR, "rank 3 failed", suspects=suspects)

    monkeypatch.setattr("orchestrator.decide.ended.classify", blame)
    cluster.put(state=S.FAILED, restart=0)
    fail_on(run, 1, "n2")
    once(run)
    assert cluster.done == [("requeue", "7")]
    cluster.put(state=S.FAILED, restart=1, end=NOW - 500)
    fail_on(run, 2, "n2")
    outcome = once(run)
    assert outcome.note == "submitted job 8"
    assert cluster.done[1:] == [("submit", "--exclude=n2")]
    assert "n2" in outcome.action.why
    # The new job knows it; put back by its own shell, it needs not be told again.
    cluster.put("8", S.PENDING, reason="BeginTime", restart=1)
    assert isinstance(once(run).action, StartNow)


def suspect(run: RunLayout, node: str, attempt: int = 1) -> None:
    store.append(run, "attempt ended", attempt=attempt, cause="GPU failure", suspects=[node])


def test_a_requeued_job_is_told_and_then_started(cluster: Cluster, run: RunLayout) -> None:
    suspect(run, "n2")
    cluster.put(state=S.PENDING, reason="BeginTime", restart=1)
    assert isinstance(once(run).action, Exclude)
    assert cluster.done == [("exclude", "7", "n2")]
    assert isinstance(once(run).action, StartNow)


def test_what_the_job_file_excludes_stays_excluded(cluster: Cluster, tmp_path: Path) -> None:
    run = make_run(tmp_path / "own", job_name="llama-1", directives=(("exclude", "n[8-9]"),))
    store.append(run, "submitted", job_id="7")
    suspect(run, "n2")
    cluster.put(state=S.PENDING, reason="BeginTime", restart=1)
    once(run)
    assert cluster.done == [("exclude", "7", "n[8-9]", "n2")]
    cluster.put(state=S.NODE_FAIL, in_queue=False)
    once(run)
    assert cluster.done[1:] == [("submit", "--exclude=n[8-9],n2")]


@pytest.mark.parametrize(("nodes", "told"), [(None, ["n2"]), (3, ["n2"]), (2, []), (1, [])])
def test_nodes_that_the_partition_cannot_do_without_stay_in(
    cluster: Cluster, tmp_path: Path, nodes: int | None, told: list[str]
) -> None:
    run = make_run(tmp_path / "two", job_name="llama-1", nodes=2)
    store.append(run, "submitted", job_id="7")
    suspect(run, "n2")
    cluster.nodes = nodes
    cluster.put(state=S.PENDING, reason="BeginTime", restart=1)
    once(run)
    assert cluster.done == [("exclude", "7", *told)]
    assert isinstance(once(run).action, StartNow)


def test_a_job_that_cannot_be_told_starts_all_the_same(cluster: Cluster, run: RunLayout) -> None:
    suspect(run, "n2")
    cluster.put(state=S.PENDING, reason="BeginTime", restart=1)
    cluster.refuses = {"exclude"}
    actions = [once(run).action for _ in range(4)]
    assert [type(action) for action in actions] == [Exclude, Exclude, Exclude, StartNow]


def test_a_submission_that_no_node_is_left_for_is_made_with_all_of_them(
    cluster: Cluster, run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = cluster.submit

    def submit(layout: RunLayout, *, options: Any = ()) -> str:
        if options:
            cluster.done.append(("submit", *options))
            words = "Requested node configuration is not available"
            raise SubmitError(["sbatch"], returncode=1, stderr=words)
        return real(layout, options=options)

    monkeypatch.setattr("orchestrator.submitting.submission.submit_slurm", submit)
    suspect(run, "n2")
    cluster.put(state=S.NODE_FAIL, in_queue=False)
    assert once(run).note == "submitted job 8"
    assert cluster.done == [("submit", "--exclude=n2"), ("submit",)]


def test_attempts_that_others_followed_are_judged_once(cluster: Cluster, run: RunLayout) -> None:
    """The batch shell and Slurm put jobs back without asking."""
    for number in (1, 2, 3):
        fail_on(run, number, "n2")
    cluster.put(state=S.PENDING, reason="Priority", restart=3)
    for _ in range(3):
        once(run)
    judged = [event["attempt"] for event in store.events(run) if event["kind"] == "attempt ended"]
    assert judged == [1, 2, 3]


# --- hangs ------------------------------------------------------------------------------------


@pytest.fixture
def hung(cluster: Cluster, run: RunLayout, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """A run whose attempt hangs."""
    real = facts.latest
    hang = Hang(why="no rank got on for 400 s: rank 3 on n2 did not arrive", idle_s=400, over_s=391)

    def latest(layout: RunLayout) -> Any:
        attempt = real(layout)
        return attempt and dataclasses.replace(attempt, hang=hang)

    monkeypatch.setattr(facts, "latest", latest)
    run.attempt(1).root.mkdir()
    run.attempt(1).start.write_text('{"job_id": "7", "restart": 0}')
    run.stalled.touch()
    cluster.put(state=S.RUNNING, restart=0)
    return run


def test_a_hung_job_is_put_back(cluster: Cluster, hung: RunLayout) -> None:
    assert once(hung).note == "requeued job 7"
    assert cluster.done == [("requeue", "7")]
    assert kinds(hung) == ["attempt ended", "restart"]
    assert store.events(hung)[-1]["cause"] == "hang"
    assert isinstance(once(hung).action, StartNow)


def test_one_that_cannot_be_put_back_is_ended_and_submitted_again(
    cluster: Cluster, hung: RunLayout
) -> None:
    cluster.refuses = {"requeue"}
    once(hung)
    cluster.put(state=S.CANCELLED, restart=0, end=time.time())
    assert once(hung).note == "submitted job 8"
    assert cluster.done == [("requeue", "7"), ("cancel", "7"), ("submit",)]


def test_a_hung_job_of_a_run_that_is_given_up_is_ended(cluster: Cluster, hung: RunLayout) -> None:
    for _ in range(3):
        store.append(hung, "restart", cause="hang", checkpoint_step=None)
    outcome = once(hung)
    assert isinstance(outcome.action, Over)
    assert cluster.done == [("cancel", "7")]
    assert isinstance(once(hung).action, Over)
    assert kinds(hung)[-1] == "gave up"


def test_two_watchers_end_a_hung_job_once(cluster: Cluster, hung: RunLayout) -> None:
    owner = {"host": "another-host", "pid": 1, "start": "1"}
    path = hung.claims / "submitted-1.0"
    path.write_text(json.dumps(owner))
    os.utime(path, (NOW, NOW))
    assert once(hung).note == "another watcher is at it"
    assert cluster.done == []


# --- out of GPU memory ------------------------------------------------------------------------


def test_a_smaller_micro_batch_is_kept_for_the_attempts_to_come(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Verdict(Cause.GPU_MEMORY, "rank 3 ran out of GPU memory")
    monkeypatch.setattr("orchestrator.decide.ended.classify", lambda *_: verdict)
    policy = dataclasses.replace(POLICY, on_gpu_memory="smaller_micro_batch", micro_batch=4)
    run = make_run(tmp_path / "a", job_name="llama-1", policy=policy)
    store.append(run, "submitted", job_id="7")
    cluster.put(state=S.FAILED)
    once(run)
    assert store.read_json(run.overrides) == {"micro_batch": 2}
    cluster.put(state=S.FAILED, restart=1)
    once(run)
    assert store.read_json(run.overrides) == {"micro_batch": 1}
    cluster.put(state=S.FAILED, restart=2)
    assert isinstance(once(run).action, Over)


# --- what an attempt to break it found --------------------------------------------------------


def test_a_job_that_could_not_be_ended_was_not_ended(cluster: Cluster, tmp_path: Path) -> None:
    """Its user may cancel it later, and then nothing brings it back."""
    run = elastic(tmp_path)
    cluster.put(state=S.PENDING, reason="Resources", submit=NOW - 700)
    cluster.refuses = {"cancel"}
    once(run)
    assert kinds(run) == ["restart", "stopping", "not stopped"]
    cluster.refuses = set()
    cluster.put(state=S.CANCELLED, reason="CANCELLED by 20001", in_queue=False)
    action = once(run).action
    assert isinstance(action, Over)
    assert action.state == "cancelled"


def test_a_record_of_a_refused_submission_is_not_adopted(cluster: Cluster, run: RunLayout) -> None:
    cluster.put("8", S.FAILED, reason="BadConstraints")
    cluster.next_id = 9
    once(run)
    assert "8" not in [event.get("job_id") for event in store.events(run)]


def test_folders_that_only_look_like_attempts(cluster: Cluster, run: RunLayout) -> None:
    for name in ("\u00b2", "1000000000", "x"):
        (run.attempts / name).mkdir()
    fail_on(run, 2, "n2")
    cluster.put(state=S.PENDING, reason="Priority", restart=1)
    once(run)
    assert store.attempt_numbers(run) == [2]
    assert [e["attempt"] for e in store.events(run) if e["kind"] == "attempt ended"] == [2]


def test_a_pipe_in_place_of_a_file_blocks_nobody(run: RunLayout) -> None:
    os.mkfifo(run.metrics)
    assert store.read_lines(run.metrics) == []
    assert store.read_json(run.metrics) is None


def test_a_requeue_by_hand_that_cannot_spare_a_bad_node(cluster: Cluster, tmp_path: Path) -> None:
    run = make_run(tmp_path / "tight", job_name="llama-1", nodes=4)
    store.append(run, "submitted", job_id="7")
    suspect(run, "n2")
    cluster.nodes = 4
    cluster.put(state=S.FAILED)
    run.cancelled.write_text('{"by": "alice"}')
    control.requeue(run, store.load_plan(run))
    assert cluster.done == [("submit",)]
    assert not run.cancelled.exists()


def test_a_requeue_that_is_refused_leaves_the_run_cancelled(
    cluster: Cluster, run: RunLayout
) -> None:
    cluster.put(state=S.CANCELLED)
    run.cancelled.write_text('{"by": "alice"}')
    cluster.refuses = {"submit"}
    with pytest.raises(SubmitError):
        control.requeue(run, store.load_plan(run))
    assert (store.read_json(run.cancelled) or {})["by"] == "alice"


def test_a_node_is_left_out_before_the_delay_is_taken(cluster: Cluster, run: RunLayout) -> None:
    """In one pass: the next one may come after the job has started there again."""
    files = run.attempt(1)
    files.reclaims.mkdir(parents=True)
    start = {"job_id": "7", "restart": 0, "nodes": "n[1-2]", "started_at": NOW - 100}
    files.start.write_text(json.dumps(start))
    files.status.write_text('{"outcome": "stopped", "step": 3, "saved_step": 3}')
    (files.reclaims / "node-1.json").write_text('{"node": "n2"}')
    cluster.put(state=S.PENDING, reason="BeginTime", restart=1)
    action = once(run).action
    assert isinstance(action, Exclude)
    assert action.nodes == ("n2",)


def test_a_node_that_is_let_go_is_suspected_no_more(
    cluster: Cluster, run: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        told = {"cause": "worker error", "why": "it failed", "node": "n2", "suspects": ["n2"]}
        store.append(run, "attempt ended", attempt=number, **told)
    cluster.put(state=S.PENDING, reason="BeginTime", restart=2, submit=time.time())
    assert isinstance(once(run).action, Exclude)
    cluster.put(state=S.PENDING, reason="Resources", restart=2, submit=time.time() - 700)
    assert isinstance(once(run).action, Exclude)
    assert [what for what in cluster.done if what[0] == "exclude"] == [
        ("exclude", "7", "n2"),
        ("exclude", "7"),
    ]
    assert isinstance(once(run).action, Wait)
