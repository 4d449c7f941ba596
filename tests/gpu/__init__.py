"""Runs by hand on a machine with GPUs; never part of `make test`."""
