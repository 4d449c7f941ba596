"""Tests of fsdpq."""
