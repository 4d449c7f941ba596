"""A Hugging Face Trainer that fsdpq can preempt: a callback of a few lines, and where it saves.

The Trainer writes its own checkpoints (`trainer.train(resume_from_checkpoint=...)` reads them), but
it writes them into a folder that already has its final name, and takes the one with the highest
number for the newest: one that was cut off in the middle is torn, and is resumed from. So here it
writes into a folder of fsdpq's, which gets its name only when all ranks have written.

    fsdpq submit jobs/hf_trainer.yaml --follow

For your own model and data, change what is below `build`. Leave `load_best_model_at_end` and
`save_total_limit` off: fsdpq names and deletes the checkpoints.
"""

import sys
from pathlib import Path

from orchestrator import runtime  # fsdpq's package is called orchestrator

run = runtime.attach()  # before torch is imported: a notice must not kill what starts

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
SAVE_EVERY = 50
LENGTH = 64


class Preemptible(TrainerCallback):
    """Stops after a step for which all ranks agree that a notice has come."""

    notice: runtime.Notice | None = None

    def on_step_end(self, args, state, control, **kwargs):
        run.heartbeat(state.global_step)
        self.notice = run.should_stop()  # the same on all ranks
        if self.notice:
            # One flag for both: a step that was to be saved anyway is saved once.
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # there is no time for that

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            run.log(state.global_step, loss=logs["loss"], grad_norm=logs.get("grad_norm"))


class PreemptibleTrainer(Trainer):
    """Saves into folders that appear whole or not at all."""

    def _save_checkpoint(self, model, trial):
        with run.checkpoint(self.state.global_step, keep_last=2) as folder:
            before, self.args.output_dir = self.args.output_dir, str(folder)
            try:
                super()._save_checkpoint(model, trial)  # makes folder/checkpoint-<step>
            finally:
                self.args.output_dir = before

    def evaluate(self, *args, **kwargs):
        with run.busy("evaluating"):  # no step for minutes, and yet no hang
            return super().evaluate(*args, **kwargs)


class Bytes(Dataset):
    """Windows of a file; its bytes are the tokens."""

    def __init__(self, path: Path) -> None:
        text = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
        self.windows = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index):
        return {"input_ids": self.windows[index], "labels": self.windows[index]}


def build(callback: TrainerCallback) -> Trainer:
    gpus = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=str(run.env.run.root / "trainer"),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        save_strategy="steps",
        save_steps=SAVE_EVERY,
        logging_steps=1,  # a line of metrics a step
        logging_nan_inf_filter=False,  # what is logged is what was
        report_to="none",
        disable_tqdm=True,
        seed=7,
        bf16=gpus,
        use_cpu=not gpus,
        # FSDP2, each decoder layer a unit of its own, each rank writing its shards. accelerate has
        # it for GPUs alone; without them this is DDP.
        fsdp=gpus,
        fsdp_config={
            "version": 2,
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            "state_dict_type": "SHARDED_STATE_DICT",
        },
    )
    torch.manual_seed(arguments.seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    data = Bytes(Path(__file__))
    return PreemptibleTrainer(model, arguments, train_dataset=data, callbacks=[callback])


@runtime.guard(run)  # an exception leaves an error file and ends all ranks, instead of a hang
def main() -> None:
    callback = Preemptible()
    trainer = build(callback)  # this connects the ranks
    checkpoint = run.resume()  # the newest complete one, the same on all ranks
    inside = checkpoint.path / f"checkpoint-{checkpoint.step}" if checkpoint else None
    trainer.train(resume_from_checkpoint=str(inside) if inside else None)
    step = trainer.state.global_step
    if callback.notice and step < trainer.state.max_steps:
        run.stopped(step=step, reason=callback.notice.signal)  # fsdpq brings it back
    else:
        run.finished(step=step)  # and now it does not
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
