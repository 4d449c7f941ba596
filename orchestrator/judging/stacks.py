"""Where a rank stands, from the stacks that Python's faulthandler wrote. Pure.

The format is that of `faulthandler.dump_traceback_later` in Python 3.11 to 3.14: a line "Timeout",
then a block for each thread, the newest thread first, frames innermost first. The main thread is
the oldest one; the others end in threading's `_bootstrap`.
"""

import re
from dataclasses import dataclass

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3[^/]*/|^<")
# Where ranks wait for one another: all of the runtime's own waiting goes through one module.
_RUNTIME = "/orchestrator/runtime/"
_RUN = "/orchestrator/runtime/run.py"
_MEETING = "/orchestrator/runtime/meeting.py"
_TORCH = "/torch/distributed/"
_C10D = "/torch/distributed/distributed_c10d.py"
# Reading and writing checkpoints is work, though it lies in the same folder.
_WORK = "/torch/distributed/checkpoint/"


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: the function, its file, and the line in it (0 where that is unknown)."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands.

    Attributes:
        function, file, line: The innermost call that is not in a library; ``file`` without folders.
        through: The collective of torch.distributed, or the runtime's call, that it is in; "" if
            it is in none.
        meets: Whether it waits for other ranks there.
    """

    function: str
    file: str
    line: int
    through: str
    meets: bool

    @property
    def key(self) -> tuple[str, str, str]:
        """What is the same for ranks that stand in the same place."""
        return (self.function, self.file, self.through)

    def __str__(self) -> str:
        where = f"{self.function} ({self.file}:{self.line})"
        return f"{self.through}, called by {where}" if self.through else where


def place(text: str) -> Place | None:
    r"""Return where the main thread stands, by the last dump in ``text``; None without one.

    >>> print(place('Thread 0x1 (most recent call first):\n  File "/w/a.py", line 7 in load\n'))
    load (a.py:7)
    """
    frames = main_thread(text)
    if not frames:
        return None
    met = next((n for n, frame in enumerate(frames) if frame.file.endswith(_MEETING)), 0)
    at = next((n for n, f in enumerate(frames) if n >= met and not _is_library(f)), met)
    own, inner = frames[at], frames[:at]
    return Place(
        function=_clean(own.function),
        file=_clean(own.file.rpartition("/")[2]),
        line=own.line,
        through=_clean(_meeting(inner)),
        meets=any(_waits(frame) for frame in inner),
    )


def _meeting(frames: list[Frame]) -> str:
    """Return by which call of the runtime's, or else which collective, a rank waits."""
    told = [f.function for f in frames if f.file.endswith(_RUN) and not f.function.startswith("_")]
    plain = [f.function for f in frames if f.file.endswith(_C10D)]
    waits = any(_waits(frame) for frame in frames)
    return next(reversed(told or plain), "") if waits else ""


def _waits(frame: Frame) -> bool:
    return frame.file.endswith(_MEETING) or (_TORCH in frame.file and _WORK not in frame.file)


def main_thread(text: str) -> list[Frame]:
    """Return the calls of the main thread, innermost first, by the last dump in ``text``."""
    dump = re.split(r"^Timeout \(.*\)!$", text, flags=re.MULTILINE)[-1]
    blocks = re.split(r"^(?:Current thread|Thread) 0x.*$", dump, flags=re.MULTILINE)[1:]
    threads = [frames for block in blocks if (frames := _frames(block))]
    main = [frames for frames in threads if frames[-1].function != "_bootstrap"]
    return main[-1] if main else []


def _frames(block: str) -> list[Frame]:
    found = (_FRAME.fullmatch(line) for line in block.splitlines())
    return [
        Frame(
            match["function"], match["file"], int(match["line"]) if "?" not in match["line"] else 0
        )
        for match in found
        if match
    ]


def _is_library(frame: Frame) -> bool:
    if "/orchestrator/trainer/" in frame.file:
        return False
    return _RUNTIME in frame.file or bool(_LIBRARY.search(frame.file))


def _clean(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:80]
