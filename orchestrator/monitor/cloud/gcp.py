"""Google Cloud: preemption and host maintenance, from the metadata server.

`instance/preempted` turns from FALSE to TRUE when a spot VM is preempted; the machine has up to
30 s then (120 s where its owner asked for that). `instance/maintenance-event` turns from NONE to
TERMINATE_ON_HOST_MAINTENANCE an hour before a VM with GPUs is stopped, and 60 s before another
one; MIGRATE_ON_HOST_MAINTENANCE stops nothing. It gives no time; `instance/upcoming-maintenance`
does, for the machine types that have it.

Asked by short requests rather than by wait_for_change: one that hangs may be hanging for good, and
a second is soon enough.

Sources:
    https://cloud.google.com/compute/docs/instances/create-use-spot
    https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice
    https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance
    https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event
    https://cloud.google.com/compute/docs/metadata/querying-metadata
"""

import json

from orchestrator.monitor.cloud.metadata import Answer, Metadata, MetadataError, failure
from orchestrator.monitor.cloud.reclaim import Reclaim, iso_time

_ROOT = "/computeMetadata/v1/instance"
_PREEMPTED = f"{_ROOT}/preempted"
_MAINTENANCE = f"{_ROOT}/maintenance-event"
_UPCOMING = f"{_ROOT}/upcoming-maintenance?alt=json"
_FLAVOR = {"Metadata-Flavor": "Google"}
_TERMINATE = "TERMINATE_ON_HOST_MAINTENANCE"


class GcpPreemption:
    """The preemption of a spot VM."""

    every_s = 1.0

    def __init__(self, service: Metadata) -> None:
        self._service = service

    def look(self) -> list[Reclaim]:
        """Return the preemption, if there is one."""
        return preempted(_text(self._service, _PREEMPTED))


class GcpMaintenance:
    """The stop of this machine for the maintenance of its host."""

    every_s = 10.0

    def __init__(self, service: Metadata) -> None:
        self._service = service

    def look(self) -> list[Reclaim]:
        """Return the stop, if one is announced."""
        if _text(self._service, _MAINTENANCE) != _TERMINATE:
            return []
        answer = _ask(self._service, _UPCOMING)
        return [maintenance(answer.text if answer.status == 200 else "")]


def preempted(text: str) -> list[Reclaim]:
    """Return the preemption that the item instance/preempted announces, if it does.

    Raises:
        MetadataError: It says neither TRUE nor FALSE.
    """
    if text not in ("TRUE", "FALSE"):
        raise MetadataError(f"{_PREEMPTED}: neither TRUE nor FALSE: {text[:100]!r}")
    what = "Google Cloud preempts this spot VM"
    return [Reclaim(word="GCP-PREEMPT", what=what)] if text == "TRUE" else []


def maintenance(upcoming: str) -> Reclaim:
    """Return the stop of the machine, at the time that ``upcoming`` gives, if it does.

    Args:
        upcoming: The item instance/upcoming-maintenance; the names in it are spelled in two ways.
    """
    try:
        data = json.loads(upcoming)
    except (ValueError, RecursionError):
        data = None
    found = data if isinstance(data, dict) else {}
    start = iso_time(found.get("window_start_time") or found.get("windowStartTime"))
    what = "Google Cloud will stop this VM for the maintenance of its host"
    vague = start is None
    return Reclaim(word="GCP-MAINTENANCE", what=what, ends_at=start, planned=True, vague=vague)


def _ask(service: Metadata, path: str) -> Answer:
    answer = service.ask(path, _FLAVOR)
    if answer.headers.get("metadata-flavor") != "Google":
        raise MetadataError(f"{path}: whatever answers is not Google's metadata server")
    return answer


def _text(service: Metadata, path: str) -> str:
    answer = _ask(service, path)
    if answer.status != 200:
        raise failure(path, answer)
    return answer.text.strip()
