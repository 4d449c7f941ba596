"""What the logs of NCCL and torch say of the network between nodes: `fsdpq diagnose`.

`lines` takes prefixes off, `network` collects the facts of each process, `clues` finds errors by
the patterns of `orchestrator.evidence`, `verdict` makes a `diagnosis` of them; all of these are
pure. `reading` streams files of any size in bounded memory, `sources` chooses them, `examine` does
both, and `record` keeps the verdict on an attempt. Standard library only: the monitor of a node
runs it.
"""
