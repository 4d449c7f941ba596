"""A job that requires RDMA and does not have it: found out, told, stopped, not started again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator import report
from orchestrator.answers import status
from orchestrator.decide import Over, ProveNetwork, Replace, Restart, TellStop, Wait, decide
from orchestrator.decide.network import GO_ON_S, HEED_S, LOOK_AGAIN_S, PROVE_S
from orchestrator.errors import SpecError
from orchestrator.fabric import record
from orchestrator.fabric.promise import NO_RDMA, Promise
from orchestrator.judging.classify import classify, past_verdict
from orchestrator.launchplan.policy import Policy
from orchestrator.monitor.environment import NodeEnvironment
from orchestrator.monitor.fabric import Fabric
from orchestrator.rundir.attempt import Attempt, Network
from orchestrator.rundir.cause import Cause
from orchestrator.rundir.layout import AttemptLayout, RunLayout
from orchestrator.runstore import facts, store
from orchestrator.runtime.notices import Notice
from orchestrator.runtime.votes import decode, encode
from orchestrator.scheduler import JobState
from orchestrator.watching import act, observe, watch

from .builders import NOW, attempt, job, make_run, past, plan, seen, site, spec
from .fake_cluster import Cluster

IB = Promise(kind="infiniband", hcas=1, gdr=True, site="ib")
POLICY = Policy(require_rdma=True)
BAD = Network(
    verdict="socket_fallback",
    name="Socket",
    hcas=0,
    gdr=False,
    why="traffic of n1, n2 goes over sockets (TCP)",
    advice="Look at `ibv_devinfo`",
    stop=True,
    at=NOW - 1000.0,
)
ONE = Network(**{**{f: getattr(BAD, f) for f in BAD.__slots__}, "hosts": ("n2.cluster",)})
GOOD = Network(verdict="ok", name="IB", at=NOW - 1000.0)


def running(network: Network | None, **changes: Any) -> Attempt:
    return attempt(network=network, **changes)


# --- the job file -----------------------------------------------------------------------------


def test_it_is_part_of_the_plan() -> None:
    made = plan(spec(require_rdma=True, nodes=2), site(fabric={"kind": "infiniband"}))
    assert made.policy.require_rdma
    assert made.fabric == Promise(kind="infiniband", networks=("IB*",), site="here")
    assert not plan(spec(require_rdma=True), site(fabric={"kind": "roce"})).policy.require_rdma
    assert type(made).from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize("kind", ["ethernet", "none"])
def test_a_site_without_rdma_refuses_it(kind: str) -> None:
    with pytest.raises(SpecError, match=rf"require_rdma: the fabric of the site here is {kind}"):
        plan(spec(require_rdma=True, nodes=2), site(fabric={"kind": kind}))


def test_a_site_whose_fabric_is_not_known_refuses_it() -> None:
    with pytest.raises(SpecError, match="does not know what the site's fabric is"):
        plan(spec(require_rdma=True, nodes=2), site(fabric={"kind": "unknown"}))


# --- the monitor ------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Node:
    """The first node of a job of two, whose monitor is asked to tick."""

    def __init__(self, root: Path, *, require: bool) -> None:
        self.run = make_run(root / "llama", fabric=IB, policy=Policy(require_rdma=require))
        self.files: AttemptLayout = self.run.attempt(1)
        self.files.nccl.mkdir(parents=True)
        self.local = root / "local"
        self.local.mkdir()
        self.clock, self.ended = Clock(), 0
        self.notice = self.local / "notice"
        env = NodeEnvironment(
            local_dir=self.local,
            attempt=self.files,
            notice_file=self.notice,
            node=0,
            host="n1",
            nodes=2,
        )
        self.duty = Fabric(env, clock=self.clock, end=self._end)

    def _end(self) -> None:
        self.ended += 1

    def tick(self, at: float) -> None:
        self.clock.now = at
        self.duty.tick()

    def step(self) -> None:
        self.files.progress.write_text('{"step": 1}')

    def say(self, *messages: str, host: str = "n1") -> None:
        with (self.files.nccl / f"{host}.7.log").open("a") as file:
            file.writelines(f"{host}:7:7 [0] NCCL INFO {message}\n" for message in messages)

    @property
    def network(self) -> Network | None:
        return record.read(self.files.fabric)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, require=True)


def test_it_looks_after_the_first_step(node: Node) -> None:
    node.say("Using network Socket")
    node.tick(5)
    assert node.network is None
    node.step()
    node.tick(10)
    found = node.network
    assert found
    assert (found.verdict, found.name, found.stop) == ("socket_fallback", "Socket", True)
    assert node.notice.read_text().split()[0] == NO_RDMA
    assert (node.files.root / "notice.0").read_text() == node.notice.read_text()


def test_it_looks_after_a_minute_where_nobody_tells_of_steps(node: Node) -> None:
    node.say("Using network Socket")
    node.tick(61)
    assert node.network


def test_it_only_flags_what_is_not_required(tmp_path: Path) -> None:
    node = Node(tmp_path, require=False)
    node.say("Using network Socket")
    node.step()
    node.tick(10)
    assert node.network
    assert (node.network.flagged, node.network.stop) == (True, False)
    assert not node.notice.exists()


def test_what_is_right_at_first_is_looked_at_again_after_the_first_step(node: Node) -> None:
    node.say("NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:x<0>", "Using network IB")
    node.tick(61)
    assert node.network
    assert (node.network.verdict, node.network.gdr) == ("ok", None)
    node.say("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0", host="n1")
    node.say("Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA", host="n2")
    node.step()
    node.tick(70)
    assert (node.network.verdict, node.network.hosts) == ("no_gdr", ("n1",))
    assert node.notice.exists()


def test_it_does_not_look_for_ever_where_nothing_is_said(node: Node) -> None:
    for at in range(0, 20000, 50):
        node.tick(at)
    assert node.network is None
    node.say("Using network Socket")
    node.tick(30000)
    assert node.network is None


def test_a_script_that_does_not_listen_is_ended(node: Node) -> None:
    node.say("Using network Socket")
    node.tick(61)
    node.tick(70)
    assert node.ended == 0
    node.tick(90)
    assert node.ended == 1


def test_one_that_listens_has_time_to_save(node: Node) -> None:
    (node.local / "beats").mkdir()
    (node.local / "beats" / "rank-0").touch()
    node.say("Using network Socket")
    node.tick(61)
    node.tick(600)
    assert node.ended == 0
    node.tick(1000)
    assert node.ended == 1


def test_the_word_of_the_notice_survives_the_vote() -> None:
    heard = decode(encode(Notice(NO_RDMA, 1.0, "file")))
    assert heard
    assert (heard.signal, heard.urgent) == (NO_RDMA, False)


# --- why it ended -----------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["stopped", ""])
def test_all_nodes_have_no_rdma(outcome: str) -> None:
    ended = running(BAD, outcome=outcome, action="none", noticed=True)
    for found in (classify(job(state=JobState.FAILED), ended), past_verdict(ended)):
        assert (found.cause, found.suspects) == (Cause.NO_RDMA, ())
        assert "over sockets" in found.why
        assert "ibv_devinfo" in found.advice


def test_one_node_is_to_blame() -> None:
    found = classify(job(state=JobState.FAILED), running(ONE, outcome="stopped", action="none"))
    assert (found.cause, found.suspects) == (Cause.NODE_CHECK, ("n2",))


def test_a_cancelled_job_stays_cancelled() -> None:
    found = classify(job(state=JobState.CANCELLED), running(BAD))
    assert found.cause is Cause.CANCELLED


def test_the_run_gives_up_with_advice() -> None:
    what = seen(job(state=JobState.FAILED), attempt=running(BAD, outcome="stopped", action="none"))
    done = decide(what, past(), POLICY)
    assert isinstance(done, Over)
    assert (done.state, done.cause, done.record) == ("failed", Cause.NO_RDMA, True)
    assert "ibv_devinfo" in done.why


def test_the_run_goes_on_without_the_one_node() -> None:
    what = seen(job(state=JobState.FAILED), attempt=running(ONE, outcome="stopped", action="none"))
    done = decide(what, past(), POLICY)
    assert isinstance(done, Restart)
    assert (done.exclude, done.job_id) == (("n2",), None)


# --- a watcher beside a job without a monitor ---------------------------------------------------


def decided(network: Network | None, policy: Policy = POLICY, **history: Any) -> object:
    return decide(seen(job(), attempt=running(network)), past(**history), policy)


def test_nobody_looked_so_the_watcher_does() -> None:
    young = seen(job(), attempt=running(None, started_at=NOW - PROVE_S + 1))
    assert isinstance(decide(young, past(), POLICY), Wait)
    assert isinstance(decided(None), ProveNetwork)
    assert isinstance(decided(None, looked=((1, NOW - LOOK_AGAIN_S + 1),)), Wait)
    assert isinstance(decided(None, looked=((1, NOW - LOOK_AGAIN_S - 1),)), ProveNetwork)
    assert isinstance(decided(None, Policy()), Wait)
    assert decided(GOOD) == Wait("running", "job 7 is running on ?")


def test_it_is_told_to_stop_once_and_then_ended() -> None:
    fresh = Network(**{**{f: getattr(BAD, f) for f in BAD.__slots__}, "at": NOW - HEED_S + 1})
    assert isinstance(decided(fresh), Wait)
    assert isinstance(decided(BAD), TellStop)
    waits = decided(BAD, told_to_stop=((1, NOW - 60.0),))
    assert isinstance(waits, Wait)
    assert waits.state == "stopping"
    late = ((1, NOW - GO_ON_S - 1),)
    over = decided(BAD, told_to_stop=late)
    assert isinstance(over, Over)
    assert (over.cause, over.job_id) == (Cause.NO_RDMA, "7")
    other = decided(ONE, told_to_stop=late)
    assert isinstance(other, Replace)
    assert (other.requeue, other.suspects) == (True, ("n2",))


@pytest.fixture
def required(tmp_path: Path) -> RunLayout:
    run = make_run(tmp_path / "llama", job_name="llama-1", fabric=IB, policy=POLICY)
    store.append(run, "submitted", job_id="7")
    files = run.attempt(1)
    files.nccl.mkdir(parents=True)
    start = {"job_id": "7", "restart": 0, "nodes": "n[1-2]", "started_at": NOW - 1000}
    files.start.write_text(json.dumps(start))
    return run


def once(run: RunLayout, cluster: Cluster, *, whole: bool = False) -> object:
    runs = [(run, store.load_plan(run))]
    sight = observe.look(runs, cluster, whole=whole)[0]
    action = decide(sight.seen, sight.past, sight.policy)
    act.act(sight, action, cluster)
    return action


def test_a_pass_proves_it_and_the_next_one_tells_the_job(
    required: RunLayout, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put()
    assert isinstance(once(required, cluster), ProveNetwork)  # nothing is said yet
    assert isinstance(once(required, cluster), Wait)
    assert [e["kind"] for e in store.events(required)][-1] == "looked at network"
    log = required.attempt(1).nccl / "n1.7.log"
    log.write_text("n1:7:7 [0] NCCL INFO Using network Socket\n")
    monkeypatch.setattr("time.time", lambda: NOW + 400)
    assert isinstance(once(required, cluster), ProveNetwork)
    found = facts.latest(required)
    assert found
    assert found.network
    assert found.network.stop
    monkeypatch.setattr("time.time", lambda: NOW + 500)
    assert isinstance(once(required, cluster), TellStop)
    assert [e["kind"] for e in store.events(required)][-1] == "told to stop"
    assert isinstance(once(required, cluster), Wait)


# --- status -----------------------------------------------------------------------------------


def test_status_shows_what_is_flagged(required: RunLayout, cluster: Cluster) -> None:
    cluster.put()
    flagged = Network(verdict="no_gdr", name="IB", why="traffic of n1 goes without GPUDirect RDMA")
    kept = {"fabric": "no_gdr", "network": "IB", "why": flagged.why, "advice": "Load it"}
    required.attempt(1).fabric.write_text(json.dumps(kept))
    runs = [(required, store.load_plan(required))]
    item = status.of(*watch.look(runs)[0], whole=True)
    assert item.to_json()["network"]["verdict"] == "no_gdr"
    assert item.attempts[0]["network"] == "no_gdr"
    line = "network: traffic of n1 goes without GPUDirect RDMA (no_gdr). Load it"
    assert line in report.details(item).splitlines()
    assert f"llama: {line}" in report.overview([item]).splitlines()
    assert "network no_gdr" in report.progress(item)


def test_status_looks_by_itself_where_nobody_did(required: RunLayout, cluster: Cluster) -> None:
    cluster.put()
    log = required.attempt(1).nccl / "n1.7.log"
    log.write_text("n1:7:7 [0] NCCL INFO Using network Socket\n")
    runs = [(required, store.load_plan(required))]
    item = status.of(*watch.look(runs)[0], whole=True)
    assert item.network
    assert item.network.verdict == "socket_fallback"
    assert not required.attempt(1).fabric.exists()
    assert status.of(*watch.look(runs)[0]).network is None  # not for a list of all runs


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"fabric": 3}', '{"fabric": ""}', "\x00"])
def test_a_verdict_that_does_not_read_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    path.write_text(text)
    assert record.read(path) is None


def test_a_verdict_of_odd_types_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    odd = {"fabric": "ok", "hcas": True, "gdr": "yes", "suspects": [3, "n1"], "at": "now"}
    path.write_text(json.dumps(odd))
    assert record.read(path) == Network(verdict="ok", hosts=("n1",))
