"""`make chaos`: a long storm. Needs root and Slurm, as `make slurm` does."""

from __future__ import annotations

import argparse
import os
import platform
import random
from datetime import datetime
from pathlib import Path

from tests.slurm.cluster import SlurmVersion

from .report import markdown, summary
from .runner import storm
from .schedule import schedule


def main() -> int:
    args = _arguments()
    command = f"python -m tests.chaos --seed {args.seed} --faults {args.faults} --runs {args.runs}"
    command += " --hang" if args.hang else ""
    command += "".join(f" --only {kind!r}" for kind in args.only or ())
    print(command, flush=True)
    faults = schedule(
        args.seed, faults=args.faults, runs=args.runs, hang=args.hang, only=args.only or ()
    )
    version = SlurmVersion.parse(os.environ.get("FSDPQ_SLURM", "22.05:/"))
    result = storm(
        version,
        faults,
        runs=args.runs,
        say=lambda text: print(text, flush=True),
        wreck=args.wreck,
    )
    machine = f"{datetime.now():%Y-%m-%d}; Slurm {version.release[0]}.{version.release[1]:02},"
    machine += f" Python {platform.python_version()}, {os.cpu_count()} cores ({platform.machine()})"
    page = markdown(result, title="The last long storm", command=command, machine=machine)
    print("\n".join(["", page, *result.problems, summary(result)]))
    if args.keep and not result.problems:
        args.keep.write_text(page)
    return bool(result.problems)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hang", action="store_true", help="also ranks that hang")
    parser.add_argument("--only", action="append", metavar="KIND", help="only faults of this kind")
    parser.add_argument("--keep", type=Path, help="write the result here if all is well")
    parser.add_argument("--wreck", type=Path, help="copy runs and logs here if something is wrong")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
