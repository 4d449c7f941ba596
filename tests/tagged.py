"""Trains nothing, and saves that again and again.

python -m tests.tagged --ranks 2 --steps 100 --every 3 [--numbers 100000] [--blocking-every 10]
    [--mode async] [--keep 4] [--slow-copy-s 0.1] [--unguarded] [--step-s 0.01] [--timeout-s 60]
    [--local FOLDER] [--stuck-copy-at 3]
"""

import argparse
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable

from orchestrator import runtime
from orchestrator.runtime import Run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--blocking-every", type=int, default=0)
    parser.add_argument("--numbers", type=int, default=100_000)
    parser.add_argument("--postpone", action="store_true", help="do not wait for the save before")
    parser.add_argument("--keep", type=int, default=4)
    parser.add_argument("--timeout-s", type=float, default=60.0)
    parser.add_argument("--mode", default="async")
    parser.add_argument("--slow-copy-s", type=float, default=0.0, help="the copy takes longer")
    parser.add_argument("--unguarded", action="store_true", help="the optimizer does not wait")
    parser.add_argument("--no-room", action="store_true", help="rank 1's node lacks memory")
    parser.add_argument("--local", help="keep copies there")
    parser.add_argument("--stuck-copy-at", type=int, help="the copy of this step never ends")
    parser.add_argument("--step-s", type=float, default=0.0, help="a step takes longer")
    args = parser.parse_args()
    sys.exit(_launch(args))


def _launch(args: argparse.Namespace) -> int:
    """Fork the ranks of a process that has imported everything: imports take the most time."""
    from orchestrator.trainer import saver  # noqa: F401
    from tests import tagged_state  # noqa: F401

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = {_fork(args, rank, port) for rank in range(args.ranks)}
    failed = False
    while ranks and not failed:
        pid, status = os.wait()
        ranks.discard(pid)
        failed = status != 0
    _end(ranks)
    return int(failed)


def _fork(args: argparse.Namespace, rank: int, port: int) -> int:
    if pid := os.fork():
        return pid
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(args.ranks),
        LOCAL_WORLD_SIZE=str(args.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    try:
        _rank(args)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _end(ranks: set[int]) -> None:
    """Give the ranks that are left time to find out by themselves, then end them."""
    deadline = time.monotonic() + 30
    while ranks:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        ranks.discard(pid)
        if not pid and time.monotonic() > deadline:
            for left in ranks:
                os.kill(left, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.02)


def _rank(args: argparse.Namespace) -> None:
    run = runtime.attach()
    with runtime.guard(run):
        _train(run, args)
        sys.stdout.flush()
        os._exit(0)


def _train(run: Run, args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    from orchestrator.spec.train import CheckpointSpec
    from orchestrator.trainer import background, snapshot, step_copy
    from orchestrator.trainer.local_copy import local_copy_of
    from orchestrator.trainer.local_reader import holder
    from orchestrator.trainer.metrics import Console
    from orchestrator.trainer.saver import Saver
    from tests import tagged_state as tagged

    dist.init_process_group("gloo")
    if args.slow_copy_s:
        _slow_down(snapshot.Snapshot, args.slow_copy_s)
    if args.unguarded:
        background.BackgroundSaver._hold_back = lambda self: None  # type: ignore[method-assign]
    if args.no_room and run.env.rank == 1:
        background.BackgroundSaver.lack = lambda self: "no room"  # type: ignore[method-assign]
    state = tagged.make_state(args.numbers, device=torch.device("cpu"))
    spec = CheckpointSpec(mode=args.mode, every_steps=args.every, keep_last=args.keep, writers=2)
    console, local = Console(quiet=run.env.rank != 0), local_copy_of(args.local, run.env)
    saver = Saver(run, state, spec, console, timeout_s=args.timeout_s, local=local)
    if args.stuck_copy_at:
        _get_stuck(step_copy.FileCopy, lambda: bool(state.step == args.stuck_copy_at))
    checkpoint = run.resume(held=holder(local, first=run.env.local_rank == 0))
    if checkpoint:
        saver.load(checkpoint)
    saver.prepare()
    while state.step < args.steps:
        tagged.advance(state)
        time.sleep(args.step_s)
        run.heartbeat(state.step)
        if notice := run.should_stop(timeout_s=60):
            saver.save(reason="notice")
            run.stopped(step=state.step, reason=notice.signal)
            break
        if args.blocking_every and state.step % args.blocking_every == 0:
            saver.save(reason="interval")
        elif saver.due() if args.postpone else state.step % args.every == 0:
            saver.save_soon()
    else:
        saver.save(reason="end")
        run.finished(step=state.step)
    saver.close()
    saver.forget_copies()
    dist.barrier()
    dist.destroy_process_group()


def _get_stuck(kind: type, now: Callable[[], bool]) -> None:
    """Let the copy of a file stop after its first part."""
    plain = kind.write  # type: ignore[attr-defined]

    def write(self: object, part: memoryview) -> None:
        plain(self, part)
        while now():
            time.sleep(1)

    kind.write = write  # type: ignore[attr-defined]


def _slow_down(kind: type, seconds: float) -> None:
    """Let the copy of a state come late, as that of a large one does."""
    plain = kind.finish  # type: ignore[attr-defined]

    def finish(self: object) -> None:
        time.sleep(seconds)
        plain(self)

    kind.finish = finish  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
