"""What a GPU holds at a moment of a step beside the shards. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """What a moment holds beside the shards, in bytes, but for `done`.

    Attributes:
        done: Parameters whose gradients of this micro-batch have been scattered.
        whole: Gathered parameters.
        buffer: What parameters are gathered into.
        sending: The fp32 copy of gradients that are being scattered.
        received: This rank's part of those.
        own: Gradients before they are scattered.
        unused: What lies between, too small for what is asked for.
    """

    name: str
    done: float = 0.0
    whole: float = 0.0
    buffer: float = 0.0
    sending: float = 0.0
    received: float = 0.0
    own: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    unused: float = 0.0
