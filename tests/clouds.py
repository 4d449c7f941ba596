"""Stand-ins for the metadata services of clouds: servers on loopback with the real protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

Reply = tuple[int, dict[str, str], bytes]
# What comes beside a plain text from AWS for an item that is not there.
NOT_FOUND = b'<?xml version="1.0" encoding="iso-8859-1"?><html><head><title>404 - Not Found</title>'


class Service(Protocol):
    """Answers requests; the names of the headers are in lower case."""

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Reply: ...


@dataclass
class Imds:
    """AWS, with IMDSv2 required: every GET needs a token that is still good."""

    items: dict[str, str] = field(default_factory=dict)
    ttl_s: int = 21600
    good: set[str] = field(default_factory=set)
    made: int = 0
    on: bool = True

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Reply:
        if not self.on or "x-forwarded-for" in headers:
            return 403, {}, b"Forbidden"
        if path == "/latest/api/token":
            return self._token(method, headers)
        if method != "GET" or headers.get("x-aws-ec2-metadata-token") not in self.good:
            return 401, {}, b"Unauthorized"
        body = self.items.get(path.removeprefix("/latest/meta-data/"))
        return (404, {}, NOT_FOUND) if body is None else (200, {}, body.encode())

    def _token(self, method: str, headers: Mapping[str, str]) -> Reply:
        wanted = headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if method != "PUT":
            return 405, {}, b"Method Not Allowed"
        if not wanted.isdigit() or not 1 <= int(wanted) <= 21600:
            return 400, {}, b"Missing or Invalid Parameters"
        self.made += 1
        token = f"AQAEA-token-{self.made}=="
        self.good.add(token)
        header = {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": str(self.ttl_s)}
        return 200, header, token.encode()

    def interrupt(self, action: str = "terminate", time: str = "2017-09-18T08:22:00Z") -> None:
        self.items["spot/instance-action"] = json.dumps({"action": action, "time": time})


@dataclass
class ScheduledEvents:
    """Azure: both versions are needed, and the header; the list of all events of the group."""

    name: str = "WestNO_0"
    events: list[dict[str, Any]] = field(default_factory=list)
    enabled: threading.Event | None = None  # set once the first answer may come

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Reply:
        if headers.get("metadata") != "true" or "api-version=" not in path:
            return 400, {}, b'{"error": "Bad request"}'
        if path.startswith("/metadata/instance/compute/name?") and "format=text" in path:
            return 200, {}, self.name.encode()
        if path != "/metadata/scheduledevents?api-version=2020-07-01":
            return 404, {}, b'{"error": "Not found"}'
        if self.enabled is not None:
            self.enabled.wait()
        document = {"DocumentIncarnation": 2, "Events": self.events}
        return 200, {"Content-Type": "application/json"}, json.dumps(document).encode()

    def schedule(self, kind: str, *machines: str, **more: Any) -> None:
        """Add an event as the documentation shows one."""
        event = {
            "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
            "EventStatus": "Scheduled",
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": list(machines or [self.name]),
            "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
            "Description": "Virtual machine is going away.",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        self.events.append({**event, **more})


@dataclass
class Google:
    """Google Cloud's metadata server."""

    preempted: str = "FALSE"
    maintenance: str = "NONE"
    upcoming: dict[str, Any] | None = None

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Reply:
        flavor = {"Metadata-Flavor": "Google"}
        if headers.get("metadata-flavor") != "Google" or method != "GET":
            return 403, flavor, b"Missing Metadata-Flavor:Google header."
        item = path.removeprefix("/computeMetadata/v1/instance/")
        if item == "upcoming-maintenance?alt=json" and self.upcoming is None:
            nothing = b'{ "error": "no notifications have been received yet, try again later" }'
            return 503, flavor, nothing
        known = {
            "preempted": self.preempted,
            "maintenance-event": self.maintenance,
            "upcoming-maintenance?alt=json": json.dumps(self.upcoming),
        }
        return (200, flavor, known[item].encode()) if item in known else (404, flavor, NOT_FOUND)


@dataclass
class Fixed:
    """Answers everything alike."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Reply:
        return self.status, self.headers, self.body


@dataclass
class Served:
    """Where a service listens, and what it was asked."""

    url: str
    asked: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def serve(service: Service) -> Iterator[Served]:
    """Let ``service`` listen on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            served.asked.append((self.command, self.path))
            names = {name.lower(): value for name, value in self.headers.items()}
            status, headers, body = service.answer(self.command, self.path, names)
            try:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # it has hung up

        do_GET = do_PUT = do_POST = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    served = Served(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
