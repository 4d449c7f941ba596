"""Everything that knows Slurm's words."""
