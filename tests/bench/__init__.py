"""Measurements, side by side with the peer in one run; never part of `make test`."""
