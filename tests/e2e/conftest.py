"""Real training on the real cluster, as one user."""

from tests.slurm.conftest import cluster, real_slurm, session_cluster, user

__all__ = ["cluster", "real_slurm", "session_cluster", "user"]
