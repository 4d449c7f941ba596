"""The command line: parse, call one function, print, exit code."""

from orchestrator.cli.main import main

__all__ = ["main"]
