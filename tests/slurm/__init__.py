"""Tests on a real Slurm cluster."""
