"""fsdpq: multi-node FSDP2 jobs on Slurm that survive preemption."""

__version__ = "0.1.0"
