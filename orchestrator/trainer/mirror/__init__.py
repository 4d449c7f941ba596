"""Copies of metrics.jsonl for TensorBoard and Weights & Biases: one curve over all attempts.

A process of its own, started by rank 0 and at a low priority, reads metrics.jsonl as it grows and
tells the others of it. Training knows nothing of it: no full disk, missing package or server that
does not answer reaches the loop. What one attempt could not tell, the next one makes up for, since
the file has it. No torch is imported here.
"""

from orchestrator.trainer.mirror.start import Mirror

__all__ = ["Mirror"]
