"""Azure: Scheduled Events, from the instance metadata service.

| EventType | least warning | here |
|---|---|---|
| Preempt | 30 s, best effort | a notice: the spot VM is deleted |
| Terminate | 5 to 15 min | a notice: the VM is deleted |
| Reboot | 15 min | a notice while it is Scheduled: memory is lost |
| Redeploy | 10 min; days where hardware is predicted to fail | the same |
| Freeze | 15 min | none: a pause of seconds, memory and files stay |

A Reboot or Redeploy that has Started is no notice: either it was heard while it was Scheduled, or
the machine has just come back from it (the event stays for about ten minutes).

Events of other machines of the same group are delivered too, so those count that name this one.
Nothing is ever acknowledged (StartRequests): that lets an event proceed for *all* machines in it,
also those whose ranks are still saving, and would gain nothing but an earlier end. The service is
switched on by the first request, whose answer may take two minutes; Azure recommends to ask once a
second.

Source: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events, api-version
2020-07-01.
"""

import json
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

from orchestrator.monitor.cloud.metadata import Metadata, MetadataError, failure
from orchestrator.monitor.cloud.reclaim import Reclaim

_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_HEADERS = {"Metadata": "true"}
_FIRST_S = 150.0
_LATER_S = 5.0
_ALWAYS = {"Preempt": "AZURE-PREEMPT", "Terminate": "AZURE-TERMINATE"}
_WHILE_SCHEDULED = {"Reboot": "AZURE-REBOOT", "Redeploy": "AZURE-REDEPLOY"}


class AzureEvents:
    """The scheduled events of this machine."""

    every_s = 1.0

    def __init__(self, service: Metadata) -> None:
        self._service = service
        self._timeout_s = _FIRST_S
        self._name = ""

    def look(self) -> list[Reclaim]:
        """Return the events that end this machine."""
        if not self._name:
            self._name = self._get(_NAME, timeout_s=_LATER_S).strip()
        text = self._get(_EVENTS, timeout_s=self._timeout_s)
        self._timeout_s = _LATER_S
        return list(events(text, machine=self._name))

    def _get(self, path: str, *, timeout_s: float) -> str:
        answer = self._service.ask(path, _HEADERS, timeout_s=timeout_s)
        if answer.status != 200:
            raise failure(path, answer)
        return answer.text


def events(text: str, *, machine: str) -> Iterator[Reclaim]:
    """Yield the events in the document ``text`` that end ``machine``.

    Raises:
        MetadataError: It is no such document.
    """
    try:
        found = json.loads(text)["Events"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise MetadataError(f"{_EVENTS}: no list of events: {text[:100]!r}")
    for event in found:
        if isinstance(event, dict) and _names(event, machine) and (word := _word(event)):
            when = event.get("NotBefore") or "now"
            yield Reclaim(
                word=word,
                what=f"Azure: {event['EventType']} of this machine, not before {when}",
                ends_at=_time(event.get("NotBefore")),
                planned=word != "AZURE-PREEMPT",
            )


def _names(event: dict[str, object], machine: str) -> bool:
    resources = event.get("Resources")
    # Names of resources are case-insensitive in Azure.
    names = resources if isinstance(resources, list) else []
    return machine.casefold() in {str(name).casefold() for name in names}


def _word(event: dict[str, object]) -> str | None:
    kind = str(event.get("EventType"))
    if kind in _WHILE_SCHEDULED and event.get("EventStatus") == "Scheduled":
        # A duration of 0 does not interrupt the machine, says the document.
        return None if event.get("DurationInSeconds") == 0 else _WHILE_SCHEDULED[kind]
    return _ALWAYS.get(kind)


def _time(text: object) -> float | None:
    """Return a time such as "Mon, 19 Sep 2016 18:29:47 GMT" in seconds since 1970."""
    try:
        return parsedate_to_datetime(text).timestamp() if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None
