"""The words of nvidia-smi. Pure: text in, values out.

Fields differ by driver: clocks_event_reasons was clocks_throttle_reasons before 535, and
gpu_recovery_action came when reset_status went (570; 580 does not know the latter any more). An
unknown field makes the whole query fail, and the message names it, so that it can be asked again
by its older name or without.

Source: `nvidia-smi --help-query-gpu` of drivers 418 to 590; tests/data/nvidia-smi/README.md.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

IDENTITY = ("index", "uuid", "name", "memory.used", "temperature.gpu")
HEALTH = (
    "pstate",
    "mig.mode.current",
    "clocks.sm",
    "clocks.max.sm",
    "clocks_event_reasons.active",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.pending",
    "gpu_recovery_action",
)
OLDER = {
    "clocks_event_reasons.active": "clocks_throttle_reasons.active",
    "gpu_recovery_action": "reset_status.reset_required",
}
ROWS = ("gpu_uuid", "remapped_rows.pending", "remapped_rows.failure")
PROCESSES = ("gpu_uuid", "pid", "used_memory", "process_name")

_INVALID = re.compile(r'Field "([^"]+)" is not a valid field to query')
_LINK = re.compile(r"Link (\d+): (.+)")
_GPU = re.compile(r"GPU (\d+): .*\(UUID: ([^)]+)\)")
# Values that stand for "there is none".
_NONE = frozenset({"", "n/a", "[n/a]", "[not supported]", "not supported", "[not found]"})
_NONE_PARTS = ("deprecated", "insufficient permissions")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of an answer: what it says by field. Text that stands for nothing is left out."""

    fields: Mapping[str, str]

    def text(self, field: str) -> str:
        """Return what it says of ``field``, "" if nothing."""
        return self.fields.get(field, "")

    def number(self, field: str) -> float | None:
        """Return the number at ``field``, None where there is none."""
        found = re.match(r"-?\d+(\.\d+)?", self.text(field))
        return float(found[0]) if found else None

    def bits(self, field: str) -> int:
        """Return the hexadecimal mask at ``field``, 0 where there is none."""
        text = self.text(field)
        return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else 0


@dataclass(frozen=True, slots=True)
class Links:
    """The NVLink links of a GPU."""

    index: str
    uuid: str
    active: int
    inactive: tuple[int, ...]


def query(kind: str, fields: Sequence[str]) -> list[str]:
    """Return the command that asks for ``fields``; ``kind`` is gpu, remapped-rows or compute-apps.

    >>> query("gpu", ["index", "uuid"])
    ['nvidia-smi', '--query-gpu=index,uuid', '--format=csv,noheader,nounits']
    """
    return ["nvidia-smi", f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"]


def read_rows(text: str, fields: Sequence[str]) -> list[Row]:
    r"""Return the lines of ``text`` that have as many values as were asked for.

    >>> read_rows("0, GPU-1, [N/A]\n", ["index", "uuid", "pstate"])[0].fields
    {'index': '0', 'uuid': 'GPU-1'}
    """
    rows = []
    for values in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(values) == len(fields):
            said = zip(fields, (value.strip() for value in values), strict=True)
            rows.append(Row({field: value for field, value in said if not _is_none(value)}))
    return rows


def _is_none(value: str) -> bool:
    low = value.lower()
    return low in _NONE or any(part in low for part in _NONE_PARTS)


def unknown_field(text: str) -> str:
    """Return the field that this driver does not know, "" if the trouble is another.

    >>> unknown_field('Field "device_minor" is not a valid field to query.')
    'device_minor'
    """
    found = _INVALID.search(text)
    return found[1] if found else ""


def without(fields: Iterable[str], unknown: str) -> tuple[str, ...]:
    """Return ``fields`` with an unknown one replaced by its older name, or left out."""
    names = (OLDER.get(name, "") if name == unknown else name for name in fields)
    return tuple(name for name in names if name)


def read_links(text: str) -> list[Links]:
    """Return the links of each GPU in the output of `nvidia-smi nvlink --status`."""
    found: list[Links] = []
    for line in text.splitlines():
        if gpu := _GPU.search(line):
            found.append(Links(gpu[1], gpu[2], 0, ()))
        elif found and (link := _LINK.search(line)):
            found[-1] = _with(found[-1], int(link[1]), active="inactive" not in link[2].lower())
    return found


def _with(links: Links, number: int, *, active: bool) -> Links:
    inactive = links.inactive if active else (*links.inactive, number)
    return Links(links.index, links.uuid, links.active + active, inactive)
