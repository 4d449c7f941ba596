"""Watches one node of an attempt, beside torchrun: a process of its own, without torch."""
