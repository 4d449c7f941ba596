"""The process of one node; node.sh starts it: `python -m orchestrator.monitor`."""

import os
import signal
import sys
import threading

from orchestrator.errors import FsdpqError
from orchestrator.monitor import cloud
from orchestrator.monitor.beats import Beats
from orchestrator.monitor.duty import Duty, say, start
from orchestrator.monitor.environment import NodeEnvironment, read_environment
from orchestrator.monitor.fabric import Fabric
from orchestrator.monitor.gpus import Gpus

# How soon the death of the parent is seen where the kernel does not kill this process with it.
_LOOK_S = 0.5


def main() -> int:
    """Run all duties until SIGTERM or the death of the parent; return an exit code."""
    parent = os.getppid()
    stop = threading.Event()
    _take_signals(stop)
    try:
        found = duties(read_environment(os.environ))
    except FsdpqError as problem:
        say(str(problem))
        return 2
    start(found, stop=stop)
    while not stop.wait(_LOOK_S) and os.getppid() == parent:
        pass
    # Not sys.exit: that would wait for a thread that holds a lock.
    os._exit(0)


def duties(env: NodeEnvironment) -> list[Duty]:
    """Return what is to be done on this node.

    Raises:
        MetadataError: The address of the metadata service is none.
    """
    # One node is enough to read what all have written, and a single one needs no network.
    network: list[Duty] = [Fabric(env)] if env.node == 0 and env.nodes > 1 else []
    return [*cloud.duties(env), beats(env), *network]


def beats(env: NodeEnvironment) -> Beats:
    """Return the duty that says how far the ranks of this node are."""
    return Beats(
        attempt=env.attempt.root,
        local_dir=env.local_dir,
        number=env.node,
        node=env.host,
        gpus=Gpus(),
        start_s=env.start_s,
    )


def _take_signals(stop: threading.Event) -> None:
    """End at SIGTERM; ignore notices. A user signal reaches every process of a job step."""
    for name in ("USR1", "USR2", "HUP"):
        signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())


if __name__ == "__main__":
    sys.exit(main())
