"""A Lightning script that fsdpq can preempt: a callback, and data whose position is saved.

A ModelCheckpoint writes into a path that already has its final name; here the checkpoint goes into
a folder of fsdpq's, which gets its name only when all ranks have written. Lightning's own requeue
is not used: under torchrun it does not see Slurm, and its signal handlers are never called, since
`attach` blocks the signals.

    fsdpq submit jobs/lightning_fit.yaml --follow
"""

import os
import sys
from pathlib import Path

from orchestrator import runtime  # fsdpq's package is called orchestrator

run = runtime.attach()  # before torch is imported: a notice must not kill what starts

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
SAVE_EVERY = 50
VOCABULARY, WIDTH, BLOCKS, LENGTH, BATCH = 256, 64, 2, 64, 4


class Preemptible(lightning.Callback):
    """Saves and stops after an optimizer step, where all ranks agree on that."""

    notice: runtime.Notice | None = None

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        step = trainer.global_step
        if step == run.step:  # gradients are still accumulated
            return
        loss = trainer.strategy.reduce(outputs["loss"].detach(), reduce_op="mean")
        run.log(step, loss=float(loss))
        run.heartbeat(step)
        self.notice = run.should_stop()  # the same on all ranks
        if self.notice or step % SAVE_EVERY == 0 or step == STEPS:
            with run.checkpoint(step, keep_last=2) as folder:
                trainer.save_checkpoint(folder / "lightning")
        if self.notice:
            trainer.should_stop = True


class Batches:
    """Windows of a file in an order that follows from the seed; its bytes are the tokens.

    `state_dict` makes Lightning save the position. Without it, a run that comes back in the middle
    of an epoch starts with the first batch of that epoch again, and only warns.
    """

    def __init__(self, path: Path, *, rank: int, ranks: int) -> None:
        text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
        self.windows = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
        self.rank, self.ranks = rank, ranks
        self.position = 0

    def __len__(self) -> int:
        return STEPS  # to Lightning the whole training is one epoch

    def __iter__(self):
        while self.position < STEPS:
            first = (self.position * self.ranks + self.rank) * BATCH
            self.position += 1
            yield torch.stack([self.sample(number) for number in range(first, first + BATCH)])

    def sample(self, number: int) -> Tensor:
        epoch, index = divmod(number, len(self.windows))
        order = torch.randperm(len(self.windows), generator=torch.Generator().manual_seed(epoch))
        return self.windows[order[index]]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Network(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=256, batch_first=True)
            for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden, src_mask=causal.to(hidden.dtype), is_causal=True)
        return self.head(hidden)


class Model(lightning.LightningModule):
    """The network, sharded, and what is done with it in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for block in self.network.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.network, mesh=mesh)

    def training_step(self, tokens: Tensor, batch_idx: int) -> Tensor:
        torch.manual_seed(self.global_step * self.trainer.world_size + self.global_rank)  # dropout
        logits = self.network(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


@runtime.guard(run)  # an exception leaves an error file and ends all ranks, instead of a hang
def main() -> None:
    checkpoint = run.resume()  # the newest complete one, the same on all ranks
    ranks = run.env.world_size
    callback = Preemptible()
    trainer = lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy=ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1),
        precision="bf16-true" if torch.cuda.is_available() else "32-true",
        max_epochs=1,
        max_steps=STEPS,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    lightning.seed_everything(7)
    trainer.fit(
        Model(),
        Batches(Path(__file__), rank=run.env.rank, ranks=ranks),
        ckpt_path=checkpoint.path / "lightning" if checkpoint else None,
    )
    step = trainer.global_step
    if callback.notice and step < STEPS:
        run.stopped(step=step, reason=callback.notice.signal)  # fsdpq brings it back
    else:
        run.finished(step=step)  # and now it does not
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
