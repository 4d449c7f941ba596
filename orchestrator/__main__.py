"""`python -m orchestrator` is `fsdpq`."""

from orchestrator.cli import main

if __name__ == "__main__":
    main(prog_name="fsdpq")
