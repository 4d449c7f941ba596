"""One rank of the bandwidth sweep over all nodes of a job; with `measure`, which has torch.

    python -m orchestrator.preflight.sweep [--budget S] [--wait S] [--expected GBS] [--ratio R]
                                           [--most-mib N] [--copy FILE]

Under torchrun, or with the variables that torchrun sets. First all ranks together, then the nodes
pair by pair. Rank 0 keeps $FSDPQ_ATTEMPT_DIR/bandwidth.json up to date with what is measured so
far; one rank of each node leaves a copy of the last state in FILE.
"""

import argparse
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.bandwidth.record import RATIO, Record

if TYPE_CHECKING:
    import torch

    from orchestrator.preflight.measure import Buffers
    from orchestrator.preflight.phases import Board, Place

_MIB = 1 << 20
# 1 MiB to 1 GiB.
_SIZES = tuple(_MIB << shift for shift in (0, 2, 4, 6, 8, 10))
_GPU_MOST, _CPU_MOST = 1 << 30, 64 << 20
# Beyond this size pairs do not get any faster.
_PAIR_MOST = 256 << 20
# What the ranks together may take of the budget, where pairs are to follow.
_FIRST_SHARE = 0.5
_SPARE_S = 60


def options(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.preflight.sweep")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds to measure for")
    parser.add_argument("--wait", type=float, default=300.0, help="seconds to wait for the others")
    parser.add_argument("--expected", type=float, help="GB/s that the site profile promises")
    parser.add_argument("--ratio", type=float, default=RATIO, help="slower than so much is slow")
    parser.add_argument("--most-mib", type=int, help="the largest array")
    parser.add_argument("--copy", type=Path, help="where one rank of each node puts the record")
    return parser.parse_args(argv)


def take_part(args: argparse.Namespace) -> None:
    """Measure, as one of the ranks."""
    from orchestrator.preflight import measure, phases

    place = phases.Place.here()
    device = measure.local_device(place.local_rank)
    store = measure.join(device, wait_s=args.wait, timeout_s=args.budget + _SPARE_S)
    names = _names(store, place)
    buffers = _buffers(args, device, place)
    everybody = measure.Meter(buffers)
    board = phases.Board(_file(place), _record(args, device, place, names))
    clock = phases.Clock(everybody, args.budget)
    pairs = place.nodes > 2
    spare_s = args.budget * (1 - _FIRST_SHARE) if pairs else 0.0
    last = phases.together(everybody, _sizes(buffers), board, clock, spare_s=spare_s)
    if pairs:
        size = min(last, _PAIR_MOST)
        phases.Tournament(place, buffers, store, size).play(everybody, names, board, clock)
    elif place.nodes > 1:
        phases.only_pair(board)
    board.add(complete=True)
    _leave_copies(args.copy, place, store, board)
    everybody.most(0.0)  # rank 0 may be the one that holds the store


def _buffers(args: argparse.Namespace, device: "torch.device", place: "Place") -> "Buffers":
    """Return arrays as large as all ranks have room for, and no larger than was asked."""
    from orchestrator.preflight import measure

    usual = _GPU_MOST if device.type == "cuda" else _CPU_MOST
    asked = args.most_mib * _MIB if args.most_mib else usual
    free = measure.free_bytes(device, local_ranks=place.local_ranks)
    return measure.Buffers(device, measure.least(min(asked, free), device))


def _sizes(buffers: "Buffers") -> list[int]:
    whole = buffers.whole.nbytes
    return [size for size in _SIZES if size <= whole] or [whole]


def _file(place: "Place") -> Path | None:
    return Path(os.environ["FSDPQ_ATTEMPT_DIR"]) / "bandwidth.json" if place.rank == 0 else None


def _record(
    args: argparse.Namespace, device: "torch.device", place: "Place", names: Sequence[str]
) -> Record:
    """Return what is known before anything is measured."""
    import torch

    from orchestrator.preflight import measure

    return Record(
        at=round(time.time(), 3),
        nodes=tuple(names),
        ranks=place.ranks,
        expected_gbs=args.expected,
        ratio=args.ratio,
        backend="nccl" if device.type == "cuda" else "gloo",
        device=measure.device_name(device),
        torch=torch.__version__,
        nccl=measure.nccl_version(device),
    )


def _names(store: Any, place: "Place") -> list[str]:
    """Return the names of all nodes, as Slurm has them; only rank 0 asks for them."""
    mine = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    if place.local_rank == 0:
        store.set(f"node {place.node}", mine)
    asked = range(place.nodes if place.rank == 0 else 0)
    return [store.get(f"node {number}").decode() for number in asked]


def _leave_copies(path: Path | None, place: "Place", store: Any, board: "Board") -> None:
    if path is None:
        return
    if place.rank == 0:
        store.set("record", board.text())
    if place.local_rank == 0:
        path.write_text(store.get("record").decode(), encoding="utf-8")


def main() -> None:
    """Measure and exit; a process group that is broken is not waited for."""
    args = options(sys.argv[1:])
    # Whoever started this may be gone.
    signal.alarm(int(args.wait + 2 * args.budget) + 2 * _SPARE_S)
    try:
        take_part(args)
    except Exception:  # of whatever kind, it is this rank's answer
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
