"""Plain HTTP to a metadata service: no proxy, no redirect, bounded in time and size.

http.client knows nothing of proxies, which is wanted: the address is the machine's own, and a
proxy would answer for another machine.
"""

import http.client
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from orchestrator.errors import FsdpqError

_TIMEOUT_S = 3.0
_MAX_BYTES = 1 << 20


class MetadataError(FsdpqError):
    """The metadata service gave no answer that could be used."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said; the names of the headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    text: str


class Metadata:
    """A metadata service at one address."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError as problem:
            raise MetadataError(f"FSDPQ_METADATA_URL is {url!r}: {problem}") from None
        if parts.scheme != "http" or not parts.hostname:
            raise MetadataError(f"FSDPQ_METADATA_URL is {url!r}; it must be http://ADDRESS[:PORT]")
        self._host, self._port = parts.hostname, port

    def ask(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        timeout_s: float = _TIMEOUT_S,
    ) -> Answer:
        """Return the answer, whatever its status.

        Raises:
            MetadataError: There is none within ``timeout_s`` seconds, or it is no HTTP, too long,
                or a redirect.
        """
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            connection.request(method, path, headers={**headers, "Connection": "close"})
            response = connection.getresponse()
            text = _body(response, deadline=time.monotonic() + timeout_s)
            found = {name.lower(): value for name, value in response.getheaders()}
        except (OSError, http.client.HTTPException, ValueError) as problem:
            why = str(problem) or type(problem).__name__
            raise MetadataError(f"{method} {path}: {why}") from None
        finally:
            connection.close()
        if 300 <= response.status < 400:
            raise MetadataError(f"{method} {path}: a redirect; that is no metadata service")
        return Answer(response.status, found, text)


def _body(response: http.client.HTTPResponse, *, deadline: float) -> str:
    """Return the body. The socket's time-out is for each read, so that a drip needs a deadline."""
    read = bytearray()
    while part := response.read1(65536):
        read += part
        if len(read) > _MAX_BYTES:
            raise ValueError("the answer is too long")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer takes too long")
    return read.decode("utf-8", errors="replace")


def failure(path: str, answer: Answer) -> MetadataError:
    """Return the error for an answer whose status is of no use."""
    return MetadataError(f"{path}: answered {answer.status}: {answer.text[:100]}")
