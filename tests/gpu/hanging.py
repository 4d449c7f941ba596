"""The training script of `tests.gpu.hangs`: a small FSDP2 model, and a rank 1 that stops arriving.

    torchrun hanging.py --hang-after 75 --steps-after 40

In the first attempt rank 1 sleeps in `load_batch` once it has trained for --hang-after seconds, so
the other ranks wait for it inside FSDP's collectives. A later attempt trains --steps-after steps
more and finishes. Rank 0 notes each step in metrics.jsonl.
"""

import argparse
import json
import time

from orchestrator import runtime

run = runtime.attach()  # before torch is imported

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard  # noqa: E402

LAYERS = 4
SAVE_EVERY = 50


def start_torch() -> torch.device:
    """Join the other ranks, and return this rank's device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", run.env.local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def make_model(width: int, device: torch.device) -> nn.Sequential:
    """Return equal linear layers, each sharded over all ranks."""
    torch.manual_seed(0)
    layers = [nn.Linear(width, width, bias=False, device=device) for _ in range(LAYERS)]
    model = nn.Sequential(*layers)
    for layer in (*layers, model):
        fully_shard(layer)
    return model


def load_batch(batch: int, width: int, device: torch.device, *, hang: bool) -> torch.Tensor:
    """Return random numbers, or never if this is the rank that is to hang."""
    while hang:
        time.sleep(60)
    return torch.randn(batch, width, device=device)


def train_step(model: nn.Sequential, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> float:
    """Take a step, wait for the GPU, and return the loss."""
    with torch.autocast(data.device.type, torch.bfloat16):
        loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.item())


def save(step: int, model: nn.Sequential) -> None:
    """Publish a checkpoint."""
    with run.checkpoint(step) as folder:
        state_dict_saver.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)


def resume(model: nn.Sequential) -> None:
    """Load the newest checkpoint, if there is one."""
    if checkpoint := run.resume():
        weights = get_model_state_dict(model)
        state_dict_loader.load({"model": weights}, checkpoint_id=checkpoint.path)
        set_model_state_dict(model, weights)


def note(step: int, step_s: float, loss: float) -> None:
    """Write a line of the metrics."""
    if run.env.rank == 0:
        line = {"step": step, "loss": loss, "step_s": step_s, "attempt": run.env.attempt}
        with run.env.run.metrics.open("a") as file:
            file.write(json.dumps({**line, "at": time.time()}) + "\n")


def train(args: argparse.Namespace, model: nn.Sequential, device: torch.device) -> None:
    """Train until the end, or until rank 1 hangs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    first, began = run.env.attempt == 1, time.monotonic()
    last = 10**9 if first else run.step + args.steps_after
    for step in range(run.step + 1, last + 1):
        start = time.monotonic()
        hang = first and run.env.rank == 1 and start - began > args.hang_after
        data = load_batch(args.batch, args.width, device, hang=hang)
        loss = train_step(model, optimizer, data)
        note(step, time.monotonic() - start, loss)
        run.heartbeat(step)
        run.should_stop()
        if step % SAVE_EVERY == 0 or step == last:
            save(step, model)
        time.sleep(args.pause)
    run.finished(step=last)


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang-after", type=float, required=True)
    parser.add_argument("--steps-after", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    device = start_torch()
    model = make_model(args.width, device)
    resume(model)
    train(args, model, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    with runtime.guard(run):
        main()
