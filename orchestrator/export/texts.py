"""What lies beside the weights: configuration, generation defaults, tokenizer."""

import shutil
from pathlib import Path

import torch
from transformers import GenerationConfig

from orchestrator.export.skeleton import Skeleton

_GENERATION = "generation_config.json"
# Whatever a tokenizer of Hugging Face reads, and nothing that holds weights.
_TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "spiece.model",
    "sentencepiece*.model",
    "*.tiktoken",
    "chat_template*",
    "additional_chat_templates",
)


def write_config(folder: Path, model: Skeleton, dtype: torch.dtype, *, base: Path | None) -> None:
    """Write config.json and generation_config.json; the latter is the base's own, if it has one."""
    model.config.dtype = dtype
    if base is not None and (base / _GENERATION).is_file():
        shutil.copyfile(base / _GENERATION, folder / _GENERATION)
    else:
        GenerationConfig.from_model_config(model.config).save_pretrained(folder)
    model.config.save_pretrained(folder)


def copy_tokenizer(folder: Path, source: Path | None) -> bool:
    """Copy the tokenizer in ``source``; return whether there is one."""
    if source is None:
        return False
    found = sorted({path for pattern in _TOKENIZER for path in source.glob(pattern)})
    for path in found:
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copyfile(path, folder / path.name)
    return bool(found)
