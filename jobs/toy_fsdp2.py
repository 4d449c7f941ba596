"""The toy of the FSDP2 tutorials: a small Transformer, sharded block by block, on random tokens.

The lines that end in `# <-` are all that fsdpq needs to stop it at a notice, without losing a step,
and to go on from there. It trains on GPUs with NCCL and without them with gloo.

    fsdpq submit jobs/toy_fsdp2.yaml --follow        # many attempts, if need be
    torchrun --nproc-per-node=2 jobs/toy_fsdp2.py    # one; a second start goes on from the first
"""

import os
import sys

from orchestrator import runtime  # <- fsdpq's package is called orchestrator

run = runtime.attach()  # <- before torch is imported: a notice must not kill what starts

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
SAVE_EVERY = 50
VOCABULARY, WIDTH, BLOCKS, LENGTH, BATCH = 128, 64, 4, 64, 8


class Toy(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=256, batch_first=True)
            for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(LENGTH, device=tokens.device)
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden, src_mask=causal, is_causal=True)
        return self.head(hidden)


def batch(step: int, device: torch.device) -> Tensor:
    """The tokens of this rank at `step`: after a restart they are drawn again, the same ones.

    A real data set wants the same of you: which samples a step takes must follow from the step (or
    from a position that you save), and not from how often the program was started.
    """
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    start = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
    return ((start + torch.arange(LENGTH + 1) * 3) % VOCABULARY).to(device)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, folder: os.PathLike[str]) -> None:
    weights, optim = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": optim}, checkpoint_id=folder)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: os.PathLike[str]) -> None:
    weights, optim = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optim": optim}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=optim)


@runtime.guard(run)  # <- an exception leaves an error file and ends all ranks, instead of a hang
def main() -> None:
    gpus = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    torch.manual_seed(0)
    model = Toy().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    checkpoint = run.resume()  # <- the newest complete one, the same on all ranks
    if checkpoint:
        load(model, optimizer, checkpoint.path)

    for step in range(run.step + 1, STEPS + 1):  # <- run.step: where the checkpoint stands
        torch.manual_seed(step * dist.get_world_size() + dist.get_rank())  # for the dropout
        tokens = batch(step, device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)

        run.log(step, loss=loss.item())  # <- for `fsdpq status`; rank 0's
        run.heartbeat(step)  # <- no hang
        notice = run.should_stop()  # <- all ranks agree: None, or why to stop
        if notice or step % SAVE_EVERY == 0 or step == STEPS:
            with run.checkpoint(step) as folder:  # <- published when all ranks have written
                save(model, optimizer, folder)
        if notice and step < STEPS:
            run.stopped(step=step, reason=notice.signal)  # <- fsdpq brings it back
            break
    else:
        run.finished(step=STEPS)  # <- and now it does not

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
