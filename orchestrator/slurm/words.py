"""The small languages in what Slurm shows of itself: records, lists, times, GPUs. Pure.

What is no value is None and never 0: UNLIMITED, INFINITE, NONE, N/A, (null).
"""

import re
from collections.abc import Mapping

_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "NONE", "None", "UNLIMITED", "INFINITE", "-1"})
# A key of `scontrol --oneliner`; all begin with a capital letter.
_KEY = re.compile(r"(?:^| )([A-Z][A-Za-z0-9_:/]*)=")
_TIME = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})")
_GRES = re.compile(r"(gpu)(?::([^:(),]+(?::[^:(),]+)*?))??(?::(\d{1,6}))?(?:\([^)]*\))?")


def record(line: str) -> dict[str, str]:
    """Return the pairs in a line of `scontrol --oneliner show`; the first of each key counts.

    What people can write freely (Reason, Comment, Extra) stands behind what is read here, so a
    text that looks like a key changes nothing.

    >>> record("NodeName=n1 OS=Linux 6.1 #1 SMP State=IDLE Reason=bad State=DOWN")["State"]
    'IDLE'
    """
    parts = _KEY.split(line.strip())
    found: dict[str, str] = {}
    for key, value in zip(parts[1::2], parts[2::2], strict=True):
        found.setdefault(key, value.strip())
    return found


def table(text: str) -> dict[str, str]:
    r"""Return the settings in the text of `scontrol show config`.

    >>> table("Configuration data as of 2026\nKillWait = 30 sec\nPrologFlags = (null)\n")
    {'KillWait': '30 sec'}
    """
    pairs = (line.partition(" = ") for line in text.splitlines() if " = " in line)
    return {
        key.strip(): value.strip()
        for key, _, value in pairs
        if value.strip() not in _NOTHING or value.strip() == "NONE"
    }


def value(text: str | None) -> str | None:
    """Return ``text`` unless it says that there is nothing.

    >>> value("UNLIMITED"), value("n1")
    (None, 'n1')
    """
    return None if text is None or text.strip() in _NOTHING else text.strip()


def seconds(text: str | None) -> int | None:
    """Return seconds from a time as scontrol and sacctmgr print it: [days-]hours:minutes:seconds.

    >>> seconds("1-12:00:00"), seconds("00:30:00"), seconds("UNLIMITED"), seconds("30 sec")
    (129600, 1800, None, 30)
    """
    said = value(text)
    if said is None:
        return None
    if found := _TIME.fullmatch(said):
        days, hours, minutes, rest = (int(part or 0) for part in found.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + rest
    return number(said)


def number(text: str | None) -> int | None:
    """Return the whole number that ``text`` begins with.

    >>> number("10 sec"), number("UNLIMITED"), number("4(x2)")
    (10, None, 4)
    """
    found = re.match(r"\d{1,15}(?![^\s(])", value(text) or "")
    return int(found[0]) if found else None


def names(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a list with commas; None where it says that all are meant.

    >>> names("ALL"), names("a,b"), names("(null)")
    (None, ('a', 'b'), ())
    """
    if text is None or text == "ALL":
        return None
    return tuple(name for name in (value(text) or "").split(",") if name)


def gpus(text: str | None) -> dict[str, int]:
    """Return how many GPUs of each type a Gres list holds; "" is one without a type.

    >>> gpus("gpu:a100:4(S:0,1),nvme:1,gpu:2"), gpus("gpu:h100:8(IDX:0-7)"), gpus("shard:4")
    ({'a100': 4, '': 2}, {'h100': 8}, {})
    """
    found: dict[str, int] = {}
    for part in re.split(r",(?![^()]*\))", value(text) or ""):
        if match := _GRES.fullmatch(part.strip()):
            kind = (match[2] or "").removesuffix(":no_consume")
            found[kind] = found.get(kind, 0) + int(match[3] or 1)
    return {kind: count for kind, count in found.items() if count}


def tres(text: str | None) -> dict[str, str]:
    """Return the amounts in a TRES list.

    >>> tres("cpu=8,mem=62.50G,gres/gpu:h100=2")["gres/gpu:h100"]
    '2'
    """
    pairs = (part.partition("=") for part in (value(text) or "").split(","))
    return {name.strip(): amount.strip() for name, equals, amount in pairs if equals}


def amount(text: str | None, name: str) -> int | None:
    """Return one amount of a TRES list.

    >>> amount("gres/gpu=8,node=2", "gres/gpu"), amount("cpu=8", "node")
    (8, None)
    """
    return number(tres(text).get(name))


def setting(config: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Return the words of a setting that is a list, in small letters.

    >>> setting({"PreemptMode": "GANG,SUSPEND"}, "PreemptMode")
    ('gang', 'suspend')
    """
    return tuple(word.strip().lower() for word in config.get(key, "").split(",") if word.strip())
