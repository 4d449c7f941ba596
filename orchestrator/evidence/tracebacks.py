"""The exception that ended a Python program, from the end of its stderr. Pure.

Only a traceback near the end counts: one that the program survived is a log line like any other.
"""

import re

_START = "Traceback (most recent call last):"
_LINKED = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Failure)?(?::|$)"
)
# "[rank3]: " is torch's, before each line of an uncaught exception (2.2 and later).
_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_WHAT = re.compile(r"^\s*what\(\):\s+(.+)")
# Syntax errors come without that first line.
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
# How far from the end it may be: notes of libraries follow, and frames of C++.
_LINES_AFTER = 60
_MESSAGE_LINES = 30


def last(text: str) -> list[str]:
    """Return the exceptions that ended the program, outermost first, as "Type: message".

    The ones that it was raised from follow. Empty where the program did not end by one.
    """
    lines = [_PREFIX.sub("", line.rstrip("\r")) for line in text.split("\n")]
    found = _uncaught(lines) or _native(lines) or _syntax(lines)
    return list(dict.fromkeys(found))


def _uncaught(lines: list[str]) -> list[str]:
    starts = [i for i, line in enumerate(lines) if line.lstrip(" |+") == _START]
    messages: list[str] = []
    end = len(lines)
    for start in reversed(starts):
        at, message = _message(lines, start + 1, end)
        if not message:
            return messages
        if not messages and _useful(lines[at:]) > _LINES_AFTER:
            return []
        messages.append(message)
        end = start
        if not any(word in line for line in lines[max(0, start - 3) : start] for word in _LINKED):
            return messages
    return messages


def _message(lines: list[str], start: int, end: int) -> tuple[int, str]:
    """Return where the message of the traceback ends, and the message."""
    at = start
    while at < end and (not lines[at].strip() or lines[at][0] in " \t|"):
        at += 1
    if at >= end or not _EXCEPTION.match(lines[at]):
        return at, ""
    stop = at + 1
    while stop < min(end, at + _MESSAGE_LINES) and not _ends_message(lines[stop]):
        stop += 1
    return stop, "\n".join(lines[at:stop])


def _ends_message(line: str) -> bool:
    """Return whether a line is no part of an exception's message: empty, a log's, a stack's."""
    return not line.strip() or line.startswith(("[", "frame #"))


def _useful(lines: list[str]) -> int:
    """Return how many lines there are but those of stacks of C++ and empty ones."""
    return sum(1 for line in lines if line.strip() and not line.startswith(("frame #", "  ")))


def _native(lines: list[str]) -> list[str]:
    """Return what an exception of C++ said that nobody caught."""
    found = [(i, match[1]) for i, line in enumerate(lines) if (match := _WHAT.match(line))]
    if not found or _useful(lines[found[-1][0] + 1 :]) > _LINES_AFTER:
        return []
    return [f"RuntimeError: {found[-1][1]}"]


def _syntax(lines: list[str]) -> list[str]:
    tail = [line for line in lines if line.strip()][-3:]
    return [line for line in tail if _SYNTAX.match(line)]
