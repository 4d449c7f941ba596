"""What clouds say, word for word as their documents have it, and how it is asked for."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from orchestrator.clouds import WORDS
from orchestrator.monitor.cloud import metadata
from orchestrator.monitor.cloud.aws import (
    AwsRebalance,
    AwsSpot,
    ImdsSession,
    instance_action,
    rebalance,
)
from orchestrator.monitor.cloud.azure import AzureEvents, events
from orchestrator.monitor.cloud.gcp import GcpMaintenance, GcpPreemption, maintenance, preempted
from orchestrator.monitor.cloud.metadata import Metadata, MetadataError
from orchestrator.monitor.cloud.reclaim import Reclaim, iso_time
from tests.clouds import Fixed, Google, Imds, ScheduledEvents, Served, Service, serve

Start = Callable[[Service], Served]
GARBAGE = ["", "<html>login</html>", "[]", "null", '"x"', "{", "[" * 100_000, '{"Events": 7}']


@pytest.fixture
def start() -> Iterator[Start]:
    """Start stand-ins; all of them end with the test."""
    with ExitStack() as stack:
        yield lambda service: stack.enter_context(serve(service))


def words(found: list[Reclaim]) -> list[str]:
    assert all(reclaim.word in WORDS for reclaim in found)
    return [reclaim.word for reclaim in found]


# --- AWS --------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["hibernate", "stop", "terminate"])
def test_aws_interruption(action: str) -> None:
    found = instance_action(json.dumps({"action": action, "time": "2017-09-18T08:22:00Z"}))
    assert (found.word, found.ends_at, found.vague) == ("AWS-SPOT", 1505722920.0, False)
    assert action in found.what
    # Whatever the clocks say: two minutes is the most there is.
    assert found.due(now=0, lead_s=1)


def test_aws_interruption_without_a_time_is_one_all_the_same() -> None:
    assert instance_action('{"action": "stop"}').ends_at is None


@pytest.mark.parametrize("text", [*GARBAGE, '{"action": "none"}', '{"action": ["stop"]}', "{}"])
def test_aws_garbage_is_no_interruption(text: str) -> None:
    with pytest.raises(MetadataError, match="instance-action"):
        instance_action(text)


def test_aws_rebalance() -> None:
    found = rebalance('{"noticeTime": "2020-10-27T08:22:00Z"}')
    assert (found.word, found.vague) == ("AWS-REBALANCE", True)


@pytest.mark.parametrize("text", [*GARBAGE, "{}", '{"noticeTime": "soon"}'])
def test_aws_garbage_is_no_rebalance(text: str) -> None:
    with pytest.raises(MetadataError, match="rebalance"):
        rebalance(text)


def test_aws_asks_with_one_token_and_nothing_is_there_at_first(start: Start) -> None:
    imds = Imds()
    served = start(imds)
    source = AwsSpot(ImdsSession(Metadata(served.url)))
    assert [source.look() for _ in range(3)] == [[], [], []]
    assert served.asked == [("PUT", "/latest/api/token")] + 3 * [
        ("GET", "/latest/meta-data/spot/instance-action")
    ]
    imds.interrupt()
    assert words(source.look()) == ["AWS-SPOT"]


def test_aws_rebalance_is_asked_for_at_its_own_place(start: Start) -> None:
    imds = Imds()
    source = AwsRebalance(ImdsSession(Metadata(start(imds).url)))
    assert source.look() == []
    imds.items["events/recommendations/rebalance"] = '{"noticeTime": "2020-10-27T08:22:00Z"}'
    assert words(source.look()) == ["AWS-REBALANCE"]


def test_aws_a_stale_token_is_replaced_at_once(start: Start) -> None:
    imds = Imds()
    source = AwsSpot(ImdsSession(Metadata(start(imds).url)))
    source.look()
    imds.good.clear()
    imds.interrupt()
    assert words(source.look()) == ["AWS-SPOT"]
    assert imds.made == 2


@pytest.mark.parametrize(("ttl_s", "renewed_after_s"), [(21600, 21300), (60, 30)])
def test_aws_a_token_is_renewed_before_it_ends(
    start: Start, ttl_s: int, renewed_after_s: int
) -> None:
    now = [0.0]
    imds = Imds(ttl_s=ttl_s)
    session = ImdsSession(Metadata(start(imds).url), clock=lambda: now[0])
    for at, made in ((0, 1), (renewed_after_s - 1, 1), (renewed_after_s, 2)):
        now[0] = float(at)
        session.get("/latest/meta-data/spot/instance-action")
        assert imds.made == made


def test_aws_never_falls_back_to_version_1(start: Start) -> None:
    served = start(Imds(on=False))
    with pytest.raises(MetadataError, match="/latest/api/token: answered 403"):
        AwsSpot(ImdsSession(Metadata(served.url))).look()
    assert {method for method, _ in served.asked} == {"PUT"}


def test_aws_a_token_that_is_none_is_never_sent(start: Start) -> None:
    served = start(Fixed(body=b"a\r\nInjected: header"))
    with pytest.raises(MetadataError, match="token"):
        AwsSpot(ImdsSession(Metadata(served.url))).look()
    assert [method for method, _ in served.asked] == ["PUT"]


# --- Azure ------------------------------------------------------------------------------------


def azure(kind: str, **more: Any) -> list[Reclaim]:
    service = ScheduledEvents()
    service.schedule(kind, **more)
    return list(events(json.dumps({"Events": service.events}), machine="westno_0"))


@pytest.mark.parametrize(
    ("kind", "status", "word"),
    [
        ("Preempt", "Scheduled", "AZURE-PREEMPT"),
        ("Preempt", "Started", "AZURE-PREEMPT"),
        ("Terminate", "Scheduled", "AZURE-TERMINATE"),
        ("Terminate", "Started", "AZURE-TERMINATE"),
        ("Reboot", "Scheduled", "AZURE-REBOOT"),
        ("Redeploy", "Scheduled", "AZURE-REDEPLOY"),
        # The machine has come back from these already, or is gone.
        ("Reboot", "Started", None),
        ("Redeploy", "Started", None),
        ("Freeze", "Scheduled", None),
        ("Freeze", "Started", None),
        ("Rebalance", "Scheduled", None),
    ],
)
def test_azure_which_events_are_notices(kind: str, status: str, word: str | None) -> None:
    found = azure(kind, EventStatus=status)
    assert words(found) == ([word] if word else [])


def test_azure_times() -> None:
    (found,) = azure("Reboot", NotBefore="Mon, 19 Sep 2016 18:29:47 GMT")
    assert found.ends_at == 1474309787.0
    assert not found.due(now=1474309787.0 - 121, lead_s=120)
    assert found.due(now=1474309787.0 - 120, lead_s=120)
    for none in ("", None, "soon", 7):
        (found,) = azure("Reboot", NotBefore=none)
        assert found.ends_at is None
        assert found.due(now=0, lead_s=120)
    (found,) = azure("Preempt", NotBefore="Mon, 19 Sep 2016 18:29:47 GMT")
    assert found.due(now=0, lead_s=120)


def test_azure_an_event_that_interrupts_nothing() -> None:
    assert azure("Reboot", DurationInSeconds=0) == []


def test_azure_events_of_other_machines(start: Start) -> None:
    service = ScheduledEvents(name="node-7")
    service.schedule("Preempt", "node-8", "node-70")
    source = AzureEvents(Metadata(start(service).url))
    assert source.look() == []
    service.schedule("Preempt", "node-8", "NODE-7")
    assert words(source.look()) == ["AZURE-PREEMPT"]


@pytest.mark.parametrize("text", [*GARBAGE, "{}"])
def test_azure_garbage_is_no_event(text: str) -> None:
    with pytest.raises(MetadataError, match="scheduledevents"):
        list(events(text, machine="x"))


def test_azure_odd_events_are_passed_over() -> None:
    document = {"Events": [7, None, {}, {"Resources": "x", "EventType": "Preempt"}]}
    assert list(events(json.dumps(document), machine="x")) == []


def test_azure_nothing_is_ever_acknowledged(start: Start) -> None:
    service = ScheduledEvents()
    served = start(service)
    source = AzureEvents(Metadata(served.url))
    service.schedule("Preempt")
    assert words(source.look() + source.look()) == ["AZURE-PREEMPT"] * 2
    assert {method for method, _ in served.asked} == {"GET"}


def test_azure_only_the_first_answer_may_take_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def ask(self: Metadata, path: str, headers: dict[str, str], *, timeout_s: float) -> Any:
        waits.append(timeout_s)
        if "scheduledevents" in path and len(waits) == 2:
            raise MetadataError("timed out")
        return metadata.Answer(200, {}, "me" if "name" in path else '{"Events": []}')

    monkeypatch.setattr(Metadata, "ask", ask)
    source = AzureEvents(Metadata("http://127.0.0.1"))
    with pytest.raises(MetadataError):
        source.look()
    source.look()
    source.look()
    assert waits == [5.0, 150.0, 150.0, 5.0]


# --- Google Cloud -----------------------------------------------------------------------------


def test_gcp_preemption(start: Start) -> None:
    google = Google()
    source = GcpPreemption(Metadata(start(google).url))
    assert source.look() == []
    google.preempted = "TRUE"
    assert words(source.look()) == ["GCP-PREEMPT"]


@pytest.mark.parametrize("text", ["", "true", "<html>", "NONE"])
def test_gcp_garbage_is_no_preemption(text: str) -> None:
    with pytest.raises(MetadataError, match="neither TRUE nor FALSE"):
        preempted(text)


@pytest.mark.parametrize("value", ["NONE", "MIGRATE_ON_HOST_MAINTENANCE", "", "new word"])
def test_gcp_what_does_not_stop_the_machine(start: Start, value: str) -> None:
    assert GcpMaintenance(Metadata(start(Google(maintenance=value)).url)).look() == []


def test_gcp_maintenance_without_a_time_is_vague(start: Start) -> None:
    google = Google(maintenance="TERMINATE_ON_HOST_MAINTENANCE")
    (found,) = GcpMaintenance(Metadata(start(google).url)).look()
    assert (found.word, found.vague, found.ends_at) == ("GCP-MAINTENANCE", True, None)


@pytest.mark.parametrize("key", ["window_start_time", "windowStartTime"])
def test_gcp_maintenance_with_a_time(start: Start, key: str) -> None:
    upcoming = {key: "2024-12-01T19:00:01Z", "maintenance_status": "PENDING"}
    google = Google(maintenance="TERMINATE_ON_HOST_MAINTENANCE", upcoming=upcoming)
    (found,) = GcpMaintenance(Metadata(start(google).url)).look()
    assert (found.vague, found.ends_at) == (False, 1733079601.0)
    assert not found.due(now=1733079601.0 - 3600, lead_s=120)


@pytest.mark.parametrize("text", [*GARBAGE, "{ }", '"NONE"', "NONE"])
def test_gcp_times_that_are_none(text: str) -> None:
    assert maintenance(text).vague


def test_gcp_a_stranger_is_not_believed(start: Start) -> None:
    """A captive portal answers everything, with 200."""
    service = Metadata(start(Fixed(body=b"TRUE")).url)
    with pytest.raises(MetadataError, match="not Google's"):
        GcpPreemption(service).look()


def test_gcp_an_answer_of_no_use(start: Start) -> None:
    service = Metadata(start(Fixed(503, {"Metadata-Flavor": "Google"}, b"later")).url)
    with pytest.raises(MetadataError, match="answered 503"):
        GcpPreemption(service).look()


# --- plain HTTP -------------------------------------------------------------------------------


def test_a_redirect_is_refused(start: Start) -> None:
    there = start(Google(preempted="TRUE"))
    flavor = {"Metadata-Flavor": "Google", "Location": there.url}
    here = start(Fixed(302, flavor))
    with pytest.raises(MetadataError, match="redirect"):
        GcpPreemption(Metadata(here.url)).look()
    assert there.asked == []


def test_a_proxy_is_not_asked(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, google = start(Fixed()), start(Google())
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
    assert GcpPreemption(Metadata(google.url)).look() == []
    assert proxy.asked == []


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(MetadataError, match="refused"):
        Metadata(f"http://127.0.0.1:{port}").ask("/x", {})


def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        service = Metadata(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(MetadataError, match="GET /x: timed out"):
            service.ask("/x", {}, timeout_s=0.1)


class Raw:
    """A server that sends what it is told, and no more, to one client."""

    def __init__(self, *parts: bytes, pause: threading.Event | None = None) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._send, args=(parts, pause), daemon=True).start()

    def _send(self, parts: tuple[bytes, ...], pause: threading.Event | None) -> None:
        with self._socket, self._socket.accept()[0] as client:
            client.recv(65536)
            for part in parts:
                try:
                    client.sendall(part)
                except OSError:
                    return  # it has hung up
                if pause is not None:
                    pause.wait(0.05)


@pytest.mark.parametrize("raw", [b"garbage\r\n\r\n", b"\0" * 100, b"", b"HTTP/1.1 x OK\r\n\r\n"])
def test_what_is_no_http(raw: bytes) -> None:
    with pytest.raises(MetadataError, match="GET /x"):
        Metadata(Raw(raw).url).ask("/x", {})


def test_an_answer_that_drips_has_a_deadline() -> None:
    drip = [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x"] * 200]
    with pytest.raises(MetadataError, match="takes too long"):
        Metadata(Raw(*drip, pause=threading.Event()).url).ask("/x", {}, timeout_s=0.3)


def test_an_answer_that_is_too_long() -> None:
    body = [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 65536] * 40]
    with pytest.raises(MetadataError, match="too long"):
        Metadata(Raw(*body).url).ask("/x", {})


@pytest.mark.parametrize(
    "url", ["", "x", "https://169.254.169.254", "file:///etc/passwd", "http://", "http://a:b"]
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(MetadataError, match="FSDPQ_METADATA_URL"):
        Metadata(url)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2017-09-18T08:22:00Z", 1505722920.0),
        ("2017-09-18T10:22:00+02:00", 1505722920.0),
        ("2017-09-18T08:22:00", 1505722920.0),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_times(text: object, at: float | None) -> None:
    assert iso_time(text) == at
