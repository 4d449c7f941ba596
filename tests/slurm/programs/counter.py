"""A training script without torch on fsdpq's runtime contract, for faults on the launcher's side.

    counter.py STEPS STEP_S EVERY [--raise-at STEP RANK] [--start-s SECONDS] [--hang-in-save STEP]
               [--save-s SECONDS] [--deaf] [--hang-at STEP RANK] [--slow RANK SECONDS]
               [--raise-on HOST] [--nccl NETWORK] [--nccl-on HOST NETWORK]

Each step sleeps; a checkpoint is a file a rank that holds the step. Ranks agree over sockets at
the head host, on the port above torchrun's.
"""

import argparse
import json
import os
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from orchestrator import runtime


class Sockets:
    """Ranks that agree through rank 0. A rank that dies breaks its connection, and so all fail."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self._connected: list[Connection] = []

    @property
    def peers(self) -> list[Connection]:
        """The other ranks to rank 0, rank 0 to the others.

        Connected when first used: before that, a notice must find its signal blocked already.
        """
        if not self._connected:
            self._connected = self._connect()
        return self._connected

    def _connect(self) -> list[Connection]:
        address = (os.environ["FSDPQ_HEAD"], int(os.environ["FSDPQ_PORT"]) + 1)
        if self.rank != 0:
            return [_connect(address)]
        with Listener(address, backlog=self.world_size) as listener:
            return [listener.accept() for _ in range(self.world_size - 1)]

    def share(self, value: Any) -> list[Any]:
        """Return the values of all ranks, on all ranks."""
        if self.rank == 0:
            values = [value, *(peer.recv() for peer in self.peers)]
            for peer in self.peers:
                peer.send(values)
            return values
        self.peers[0].send(value)
        shared: list[Any] = self.peers[0].recv()
        return shared

    def maximum(self, values: list[int], *, timeout_s: float) -> list[int]:
        return [max(column) for column in zip(*self.share(values), strict=True)]

    def broadcast(self, value: Any = None) -> Any:
        return next(item for item in self.share((self.rank, value)) if item[0] == 0)[1]

    def gather(self, value: Any) -> list[Any]:
        ordered = sorted(self.share((self.rank, value)))
        return [item for _, item in ordered] if self.rank == 0 else []


def _connect(address: tuple[str, int]) -> Connection:
    for _ in range(600):
        try:
            return Client(address)
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"rank 0 does not listen on {address}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("step_s", type=float)
    parser.add_argument("every", type=int)
    parser.add_argument("--raise-at", type=int, nargs=2, default=(-1, -1))
    parser.add_argument("--hang-in-save", type=int, default=-1)
    parser.add_argument("--deaf", action="store_true", help="never look for a notice")
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--save-s", type=float, default=0.0)
    parser.add_argument("--hang-at", type=int, nargs=2, default=(-1, -1), help="attempt 1 only")
    parser.add_argument("--raise-on", default="", metavar="HOST", help="fail there at once")
    parser.add_argument("--nccl", default="", metavar="NETWORK", help="write a log like NCCL's")
    parser.add_argument("--nccl-on", nargs=2, default=("", ""), metavar=("HOST", "NETWORK"))
    parser.add_argument("--slow", type=float, nargs=2, default=(-1, 0.0), help="RANK SECONDS")
    args = parser.parse_args()
    run = runtime.attach(ranks=Sockets())
    with runtime.guard(run):
        count(run, args)


def count(run: runtime.Run, args: argparse.Namespace) -> None:
    if run.already_finished:
        return
    if args.nccl:
        host, network = args.nccl_on
        write_nccl_log(network if host == os.uname().nodename else args.nccl)
    time.sleep(args.start_s)
    if os.uname().nodename == args.raise_on:
        raise OSError("this node is broken")
    checkpoint = run.resume()
    step = checkpoint.step if checkpoint else 0
    if run.should_stop():
        run.stopped(step=step, reason="notice before the first step")
        return
    while step < args.steps:
        step += 1
        began = time.monotonic()
        time.sleep(args.step_s)
        if args.raise_at == [step, run.env.rank]:
            raise ArithmeticError(f"told to fail at step {step}")
        if args.hang_at == [step, run.env.rank] and run.env.attempt == 1:
            hang_for_ever()
        if args.slow[0] == run.env.rank:
            time.sleep(args.slow[1])
        write_metrics(run, step, step_s=time.monotonic() - began)
        run.heartbeat(step)
        notice = None if args.deaf else run.should_stop()
        if notice or step % args.every == 0 or step == args.steps:
            hang = step == args.hang_in_save and run.env.attempt == 1
            save(run, step, hang=hang, save_s=args.save_s)
        if notice and step < args.steps:
            run.stopped(step=step, reason=notice.signal)
            return
    run.finished(step=step)


def hang_for_ever() -> None:
    while True:
        time.sleep(3600)


def save(run: runtime.Run, step: int, *, hang: bool, save_s: float) -> None:
    with run.checkpoint(step) as folder:
        time.sleep(save_s)
        (Path(folder) / f"rank-{run.env.rank}.json").write_text(json.dumps({"step": step}))
        if hang:
            (run.env.run.root / "hanging").touch()
            time.sleep(3600)


def write_nccl_log(network: str) -> None:
    """Write what NCCL 2.27 says of its network to where NCCL_DEBUG_FILE has it."""
    host, pid = os.uname().nodename, os.getpid()
    devices = "[0]mlx5_0:1/IB [RO]" if network == "IB" else "[RO]"
    gdr = "/GDRDMA" if network == "IB" else ""
    said = (
        f"NET/IB : Using {devices}; OOB eth0:10.0.0.1<0>",
        *(() if network == "IB" else ("NET/IB : No device found.", "NET/Socket : Using [0]eth0:x")),
        f"Using network {network}",
        f"Channel 00/0 : 0[0] -> 2[0] [send] via NET/{network}/0{gdr}",
    )
    name = os.environ["NCCL_DEBUG_FILE"].replace("%h", host).replace("%p", str(pid))
    lines = (f"{host}:{pid}:{pid} [0] NCCL INFO {message}\n" for message in said)
    Path(name).write_text("".join(lines))


def write_metrics(run: runtime.Run, step: int, *, step_s: float) -> None:
    if run.env.rank == 0:
        line = {
            "attempt": run.env.attempt,
            "step": step,
            "loss": 1 / step,
            "step_s": step_s,
            "world_size": run.env.world_size,
            "at": time.time(),
        }
        with run.env.run.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
