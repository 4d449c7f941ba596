"""Text to token shards, on any machine: the format, the reading of sources, the parallel work.

Needs neither torch nor numpy. `tokenizers`, `transformers` and `datasets` are imported by the
worker processes alone, and only what a source asks for.
"""
