"""The reference trainer: `python -m orchestrator.trainer train.json`, under torchrun.

Trains a Hugging Face causal language model with FSDP2 and DCP checkpoints. This folder and
`orchestrator.runtime.collective` are all that imports torch.
"""
