"""What a Hugging Face configuration leaves out, as transformers 5 fills it in, by family. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Config = Mapping[str, Any]

_LLAMA: Config = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000,
}  # fmt: skip
_QWEN: Config = {
    **_LLAMA, "intermediate_size": 22016, "vocab_size": 151936, "num_key_value_heads": 32,
    "sliding_window": 4096,
}  # fmt: skip
_GEMMA: Config = {
    "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
    "vocab_size": 256000, "tie_word_embeddings": True,
}  # fmt: skip
_GEMMA2: Config = {
    **_GEMMA, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096,
}  # fmt: skip

DEFAULTS: Mapping[str, Config] = MappingProxyType(
    {
        "llama": _LLAMA,
        "mistral": {
            **_LLAMA,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        "qwen2": _QWEN,
        "qwen3": {**_QWEN, "head_dim": 128},
        "gemma": _GEMMA,
        "gemma2": _GEMMA2,
        "gemma3_text": {**_GEMMA2, "vocab_size": 262208},
        "granite": _LLAMA,
        "olmo2": {**_LLAMA, "vocab_size": 50304},
        "phi3": {**_LLAMA, "hidden_size": 3072, "intermediate_size": 8192, "vocab_size": 32064},
        "smollm3": {
            **_LLAMA,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
        },
        "mixtral": {
            **_LLAMA,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "num_experts": 8,
            "num_experts_per_tok": 2,
        },
        "qwen3_moe": {
            **_QWEN,
            "hidden_size": 2048,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
        },
    }
)
