"""`python -m orchestrator.preflight`: check this node. The exit codes stand in the package."""

import json
import os
import signal
import socket
import sys
import time
from types import FrameType

from orchestrator.preflight.bandwidth import limit_s
from orchestrator.preflight.check import Place, check, lines
from orchestrator.preflight.children import Output, end_all, start_module
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Findings

NOTICED, UNFIT = 75, 76
# Beyond the time-outs of the checks themselves.
_SPARE_S = 15
_SAVE_S = 10.0


def main() -> None:
    """Check this node and exit."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _on_notice)
    signal.signal(signal.SIGALRM, _on_alarm)
    try:
        code = _main()
    except Exception as problem:  # a check that breaks must not stop the job
        _say(f"fsdpq: the check of this node broke: {type(problem).__name__}: {problem}")
        code = 0
    _leave(code)


def _main() -> int:
    place = Place.of(os.environ, hostname=socket.gethostname().partition(".")[0])
    path = place.run_dir / "preflight.json"
    expected = Expected.from_json(json.loads(path.read_text(encoding="utf-8")))
    signal.alarm(_limit_s(expected))
    found = check(expected, place, os.environ)
    for line in lines(found, place):
        _say(line)
    _save(found, place)
    return UNFIT if found.problems else 0


def _limit_s(expected: Expected) -> int:
    ranks = expected.all_reduce_timeout_s if expected.asks("all_reduce") else 0
    sweep = limit_s(expected) if expected.asks("bandwidth") else 0
    return expected.timeout_s + ranks + sweep + _SPARE_S


def _save(found: Findings, place: Place) -> None:
    """Write what was found. On a file system that hangs, it has been printed at least."""
    text = json.dumps(found.to_json(node=place.host, at=round(time.time(), 3))) + "\n"
    child = start_module("orchestrator.preflight.writing", "--save", str(place.result), text=text)
    saved = child.finish(time.monotonic() + _SAVE_S)
    if saved.code != 0:
        why = _why(saved)
        _say(f"fsdpq: node {place.number}: {place.result} could not be written: {why}")


def _why(saved: Output) -> str:
    """Return in words why a child that was to write has not."""
    if saved.code is None:
        return f"it took more than {_SAVE_S:.0f} s; its file system is slow or hangs"
    last = saved.text.strip().rpartition("\n")[2]  # of a traceback: what was raised
    return last or f"its process ended with code {saved.code}"


def _on_notice(number: int, frame: FrameType | None) -> None:
    """End at once: the allocation will, and node.sh has taken note of it."""
    _leave(NOTICED)


def _on_alarm(number: int, frame: FrameType | None) -> None:
    _say("fsdpq: the check of this node took too long; going on without it")
    _leave(0)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _leave(code: int) -> None:
    """Exit without waiting for children that cannot be killed."""
    end_all()
    os._exit(code)


if __name__ == "__main__":
    main()
