"""The run directory on disk: written, claimed and read back, and the run as it is seen from it."""
