"""The monitor's parts, each on its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator import clouds
from orchestrator.errors import RunError
from orchestrator.monitor import __main__ as process
from orchestrator.monitor import duty as duties
from orchestrator.monitor.cloud.metadata import MetadataError
from orchestrator.monitor.cloud.reclaim import Reclaim
from orchestrator.monitor.cloud.watch import ReclaimWatch
from orchestrator.monitor.environment import read_environment
from orchestrator.monitor.notes import Notes
from orchestrator.rundir.layout import AttemptLayout
from orchestrator.runtime.notices import Notice, read_notice_file
from orchestrator.runtime.votes import decode, encode

VARIABLES = {
    "FSDPQ_LOCAL_DIR": "/tmp/fsdpq.1",
    "FSDPQ_ATTEMPT_DIR": "/runs/llama/attempts/3",
    "FSDPQ_NOTICE_FILE": "/tmp/fsdpq.1/notice",
}
SPOT = Reclaim(word="AWS-SPOT", what="AWS will stop this", ends_at=1120.0)
PLANNED = Reclaim(word="AZURE-REBOOT", what="Azure: Reboot", ends_at=2000.0, planned=True)
VAGUE = Reclaim(word="GCP-MAINTENANCE", what="Google will stop this", vague=True)


# --- the words --------------------------------------------------------------------------------


@pytest.mark.parametrize("word", clouds.WORDS)
def test_a_clouds_word_survives_the_vote(tmp_path: Path, word: str) -> None:
    path = tmp_path / "notice"
    path.write_text(f"{word} 1732900000\n")
    notice = read_notice_file(path)
    assert notice == Notice(word, 1732900000, "file")
    assert not notice.urgent
    assert decode(encode(notice)) == Notice(word, 0.0, "vote")


def test_urgency_of_words_and_signals() -> None:
    names = ["SOMETHING-NEW", "USR1", "USR2", *clouds.WORDS, "TERM"]
    votes = [encode(Notice(name, 0, "file")) for name in names]
    assert votes == sorted(set(votes))
    assert votes[0] > 0


@pytest.mark.parametrize("name", ["_BLOCK", "_IGN", "_DFL", "NAL", "", "NOTICE"])
def test_no_odd_word_is_taken_for_something_else(name: str) -> None:
    """The module signal has SIG_BLOCK too, and it is 0, which would be no notice at all."""
    assert decode(encode(Notice(name, 0, "file"))) == Notice("NOTICE", 0, "vote")


# --- the environment --------------------------------------------------------------------------


def test_the_least_environment() -> None:
    env = read_environment(VARIABLES)
    assert (env.node, env.cloud, env.lead_s, env.stop_on_rebalance) == (0, "none", 120, False)
    assert env.metadata_url == "http://169.254.169.254"
    assert env.attempt == AttemptLayout(Path("/runs/llama/attempts/3"))
    assert env.host
    assert [duties.duty_name(duty) for duty in process.duties(env)] == ["Beats"]


def test_the_whole_environment() -> None:
    more = {
        "FSDPQ_NODE": "3",
        "FSDPQ_CLOUD": "aws",
        "FSDPQ_NOTICE_LEAD_S": "60",
        "FSDPQ_STOP_ON_REBALANCE": "1",
        "FSDPQ_METADATA_URL": "http://127.0.0.1:1",
        "SLURMD_NODENAME": "n4",
    }
    env = read_environment({**VARIABLES, **more})
    assert (env.node, env.cloud, env.lead_s, env.stop_on_rebalance) == (3, "aws", 60, True)
    assert (env.metadata_url, env.host) == ("http://127.0.0.1:1", "n4")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"FSDPQ_ATTEMPT_DIR": ""}, "FSDPQ_ATTEMPT_DIR is not set"),
        ({"FSDPQ_NODE": "-1"}, "FSDPQ_NODE is '-1'"),
        ({"FSDPQ_NOTICE_LEAD_S": "2m"}, "FSDPQ_NOTICE_LEAD_S is '2m'"),
        ({"FSDPQ_CLOUD": "ovh"}, "must be one of none, aws, azure, gcp"),
    ],
)
def test_an_environment_that_makes_no_sense(changes: dict[str, str], words: str) -> None:
    with pytest.raises(RunError, match=words):
        read_environment({**VARIABLES, **changes})


@pytest.mark.parametrize(
    ("cloud", "names"),
    [
        ("none", []),
        ("aws", ["AwsSpot", "AwsRebalance"]),
        ("azure", ["AzureEvents"]),
        ("gcp", ["GcpPreemption", "GcpMaintenance"]),
    ],
)
def test_the_duties_of_a_cloud(cloud: str, names: list[str]) -> None:
    found = process.duties(read_environment({**VARIABLES, "FSDPQ_CLOUD": cloud}))
    assert [duties.duty_name(duty) for duty in found] == [*names, "Beats"]


def test_an_address_that_is_none_is_said() -> None:
    bad = {"FSDPQ_CLOUD": "gcp", "FSDPQ_METADATA_URL": "ftp://x"}
    with pytest.raises(MetadataError, match="must be http"):
        process.duties(read_environment({**VARIABLES, **bad}))


# --- duties -----------------------------------------------------------------------------------


@dataclass
class Counting:
    """Calls ``each`` with the number of the tick, and says when ``enough`` have been."""

    each: Callable[[int], None] = lambda number: None
    enough: int = 3
    every_s: float = 0.001
    ticks: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def tick(self) -> None:
        self.ticks += 1
        if self.ticks == self.enough:
            self.done.set()
        self.each(self.ticks)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the monitor says."""
    lines: list[str] = []
    for module in (duties, process):
        monkeypatch.setattr(module, "say", lines.append)
    monkeypatch.setattr("orchestrator.monitor.cloud.watch.say", lines.append)
    return lines


def test_a_duty_that_raises_is_said_once_and_goes_on(said: list[str]) -> None:
    def fail(number: int) -> None:
        raise (OSError if number % 2 else KeyError)(f"try {number}")

    failing, stop = Counting(fail, enough=9), threading.Event()
    duties.start([failing], stop=stop)
    assert failing.done.wait(20)
    stop.set()
    assert said == ["Counting: OSError: try 1", "Counting: KeyError: 'try 2'"]


def test_a_duty_that_hangs_hinders_no_other(said: list[str]) -> None:
    release, stop = threading.Event(), threading.Event()
    hanging, other = Counting(lambda number: assert_set(release)), Counting()
    duties.start([hanging, other], stop=stop)
    assert other.done.wait(20)
    assert hanging.ticks == 1
    stop.set()
    release.set()
    assert said == []


def assert_set(event: threading.Event) -> None:
    assert event.wait(20)


def test_where_no_thread_can_be_started(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    duties.start([Counting(), Counting()], stop=threading.Event())
    assert said == ["Counting is left out: can't start new thread"] * 2


def test_what_is_said_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    duties.say("two\nlines \ud800" + "x" * 1000)
    text = capfd.readouterr().err
    assert text.startswith("fsdpq: node ?: monitor: two lines ?x")
    assert text.count("\n") == 1
    assert len(text) < 600


# --- from a reclaim to a notice ---------------------------------------------------------------


@dataclass
class Scripted:
    """A source that says what it is told."""

    says: list[Reclaim] = field(default_factory=list)
    every_s: float = 1.0

    def look(self) -> list[Reclaim]:
        return self.says


@dataclass
class Stage:
    """A watch on a source, with its files and a clock."""

    path: Path
    source: Scripted = field(default_factory=Scripted)
    now: float = 1000.0

    def watch(self, *, heeded: bool = True) -> ReclaimWatch:
        (self.path / "attempt").mkdir()
        notes = Notes(self.path / "notice", AttemptLayout(self.path / "attempt"), 3, "n4")
        return ReclaimWatch(self.source, notes, lead_s=120, heeded=heeded, clock=lambda: self.now)

    def heard(self) -> list[str]:
        path = self.path / "notice"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_reclaim_is_written_down_for_ranks_and_run(stage: Stage, said: list[str]) -> None:
    watch = stage.watch()
    watch.tick()
    assert stage.heard() == []
    stage.source.says = [SPOT]
    watch.tick()
    watch.tick()
    assert stage.heard() == ["AWS-SPOT 1000"]
    attempt = stage.path / "attempt"
    assert (attempt / "notice.3").read_text() == "AWS-SPOT 1000\n"
    assert json.loads((attempt / "reclaims/node-3.json").read_text()) == {
        "node": "n4",
        "word": "AWS-SPOT",
        "what": "AWS will stop this",
        "at": 1000.0,
        "ends_at": 1120.0,
    }
    assert said == ["AWS will stop this"]


def test_a_note_is_added_to_those_of_node_sh(stage: Stage) -> None:
    stage.source.says = [SPOT]
    watch = stage.watch()
    (stage.path / "notice").write_text("USR2 900\n")
    watch.tick()
    assert stage.heard() == ["USR2 900", "AWS-SPOT 1000"]


def test_the_ranks_hear_it_where_the_shared_file_system_fails(stage: Stage) -> None:
    stage.source.says = [SPOT]
    watch = stage.watch()
    (stage.path / "attempt").rmdir()
    with pytest.raises(OSError, match="notice"):
        watch.tick()
    assert stage.heard() == ["AWS-SPOT 1000"]
    (stage.path / "attempt").mkdir()
    watch.tick()
    assert (stage.path / "attempt/notice.3").exists()


def test_planned_maintenance_waits_for_its_time(stage: Stage, said: list[str]) -> None:
    stage.source.says = [PLANNED]
    watch = stage.watch()
    watch.tick()
    stage.now = 2000.0 - 122
    watch.tick()
    assert (stage.heard(), said) == ([], ["Azure: Reboot"])
    stage.now = 2000.0 - 121  # the lead, and the second until the next question
    watch.tick()
    assert stage.heard() == ["AZURE-REBOOT 1879"]


def test_planned_maintenance_that_is_called_off(stage: Stage) -> None:
    stage.source.says = [PLANNED]
    watch = stage.watch()
    watch.tick()
    stage.source.says, stage.now = [], 1990.0
    watch.tick()
    assert stage.heard() == []


def test_what_is_vague_counts_only_for_the_attempt_that_saw_it_come(
    stage: Stage, said: list[str]
) -> None:
    stage.source.says = [VAGUE]
    watch = stage.watch()
    watch.tick()
    watch.tick()
    assert (stage.heard(), said) == ([], ["Google will stop this"])
    stage.source.says = []
    watch.tick()
    stage.source.says = [VAGUE]
    watch.tick()
    assert stage.heard() == ["GCP-MAINTENANCE 1000"]


def test_a_question_without_answer_says_nothing_of_what_was_there_before(stage: Stage) -> None:
    watch = stage.watch()
    good, calls = stage.source.look, [0]

    def look() -> list[Reclaim]:
        calls[0] += 1
        if calls[0] == 1:
            raise MetadataError("timed out")
        return good()

    stage.source.look = look  # type: ignore[method-assign]
    with pytest.raises(MetadataError):
        watch.tick()
    stage.source.says = [VAGUE]
    watch.tick()
    assert stage.heard() == []


def test_a_recommendation_is_only_said_unless_it_is_asked_for(
    stage: Stage, said: list[str]
) -> None:
    watch = stage.watch(heeded=False)
    watch.tick()
    stage.source.says = [VAGUE]
    watch.tick()
    assert (stage.heard(), said) == ([], ["Google will stop this"])


def test_a_second_word_of_a_cloud_is_a_notice_of_its_own(stage: Stage) -> None:
    stage.source.says = [PLANNED]
    stage.now = 1950.0
    watch = stage.watch()
    watch.tick()
    stage.source.says = [PLANNED, SPOT]
    watch.tick()
    assert stage.heard() == ["AZURE-REBOOT 1950", "AWS-SPOT 1950"]
