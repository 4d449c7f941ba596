"""Small models of many families, with the real ones' peculiarities."""

from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
}
# More tokens than this in a sequence, and the frequencies change.
_ROPE = {"rope_theta": 10000.0, "original_max_position_embeddings": 32, "factor": 4.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-tied": {**LLAMA, "tie_word_embeddings": True},
    "llama-odd": {**LLAMA, "hidden_size": 36, "head_dim": 8, "vocab_size": 257},
    "llama3-rope": {
        **LLAMA,
        "rope_parameters": {
            **_ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0
        },
    },
    "dynamic-rope": {
        **LLAMA, "max_position_embeddings": 32, "rope_parameters": {**_ROPE, "rope_type": "dynamic"}
    },
    "qwen2-tied": {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-yarn": {
        **LLAMA, "model_type": "qwen2", "rope_parameters": {**_ROPE, "rope_type": "yarn"}
    },
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 16},
    "mistral": {**LLAMA, "model_type": "mistral", "sliding_window": 24},
    "gemma": {**LLAMA, "model_type": "gemma", "head_dim": 16, "num_key_value_heads": 1},
    "gemma2": {**LLAMA, "model_type": "gemma2", "head_dim": 16, "sliding_window": 24},
    "gemma3": {
        **LLAMA, "model_type": "gemma3_text", "head_dim": 16, "num_hidden_layers": 7,
        "sliding_window": 24,
    },
    "phi3": {**LLAMA, "model_type": "phi3", "pad_token_id": 0},
    "olmo2": {**LLAMA, "model_type": "olmo2"},
    "granite": {**LLAMA, "model_type": "granite", "logits_scaling": 4.0},
    "starcoder2": {**LLAMA, "model_type": "starcoder2", "sliding_window": 24},
    "gpt2": {
        "model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
        "vocab_size": 256,
    },
}  # fmt: skip
