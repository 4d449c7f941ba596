"""The process that writes a rank's files: hashing and writing there cost the training no step.

    python -c ... CONNECTION MEMORY BYTES THREADS

It has no GPU and talks to nobody but its rank. It ends when the rank does: the connection breaks.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from orchestrator.trainer.host_memory import HostMemory, Region
from orchestrator.trainer.shards import Piece, Plan, Written, write_files

READY = "ready"
_NICENESS = 5
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


@dataclass(frozen=True, slots=True)
class Order:
    """From the rank: files to write, each with what it consists of."""

    folder: Path
    files: Sequence[tuple[str, Sequence[Region | bytes]]]


@dataclass(frozen=True, slots=True)
class Answer:
    """To the rank: what was written, or why not."""

    written: Sequence[Written] = ()
    problem: str = ""


def main() -> None:
    """Serve the rank until the connection ends."""
    # Signals for the job reach every process of the step. The rank decides what they mean.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    connection, file, nbytes, threads = (int(word) for word in sys.argv[1:5])
    torch.set_num_threads(1)
    # The manifest has better sums, and nothing reads these.
    torch.serialization.set_crc32_options(False)
    serve(Connection(connection), HostMemory(file, nbytes), threads=threads)


def serve(rank: Connection, memory: HostMemory, *, threads: int) -> None:
    """Write what the rank orders. Ends the process once the rank is gone, in mid-file too."""
    rank.send(READY)
    while True:
        try:
            order: Order = rank.recv()
        except (EOFError, OSError):
            os._exit(0)
        worker = threading.Thread(target=_obey, args=(rank, memory, order, threads), daemon=True)
        worker.start()


def _obey(rank: Connection, memory: HostMemory, order: Order, threads: int) -> None:
    try:
        plans = [_plan(memory, name, pieces) for name, pieces in order.files]
        answer = Answer(write_files(order.folder, plans, threads=threads, direct=True))
    except Exception as problem:  # the rank has to hear of whatever it is
        answer = Answer(problem=f"{type(problem).__name__}: {problem}")
    with contextlib.suppress(OSError):
        rank.send(answer)


def _plan(memory: HostMemory, name: str, pieces: Sequence[Region | bytes]) -> Plan:
    return Plan(name, [_piece(memory, piece) for piece in pieces])


def _piece(memory: HostMemory, what: Region | bytes) -> Piece:
    if isinstance(what, bytes):
        return lambda: what
    return lambda: memory.tensor(what)
