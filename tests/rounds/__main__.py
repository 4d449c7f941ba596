"""Play many rounds: `python -m tests.rounds --rounds 1000 --seed 1`."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.rounds.rounds import Result, play


def main() -> int:
    """Play, print each round that went wrong and a summary; return 1 if any did."""
    parser = argparse.ArgumentParser(prog="python -m tests.rounds", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next has +1")
    # They wait more than they work.
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--sabotage", action="store_true", help="watchers that claim nothing")
    args = parser.parse_args()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fsdpq-rounds-"))
    seeds = range(args.seed, args.seed + args.rounds)
    jobs = [(seed, folder / str(seed), args.sabotage) for seed in seeds]
    results = []
    gc.freeze()  # what the forks share stays shared
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for result in pool.imap_unordered(_play, jobs):
            results.append(result)
            for problem in result.problems:
                print(
                    f"seed {result.seed} ({result.kind}): {problem}  [{folder / str(result.seed)}]"
                )
    _summary(results, time.monotonic() - began)
    if any(result.problems for result in results):
        return 1
    shutil.rmtree(folder)
    return 0


def _play(job: tuple[int, Path, bool]) -> Result:
    seed, folder, sabotage = job
    return play(seed, folder, sabotage=sabotage)


def _summary(results: list[Result], seconds: float) -> None:
    said = [problem for result in results for problem in result.problems]
    kinds = Counter(result.kind for result in results)
    print(f"rounds               {len(results)}")
    print(f"duplicates           {sum('lost' not in problem for problem in said)}")
    print(f"lost runs            {sum('lost' in problem for problem in said)}")
    print(f"processes killed     {sum(result.killed for result in results)}")
    print(f"submits and requeues {sum(result.acts for result in results)}")
    print(f"passes to the end    {max(result.passes for result in results)} at most")
    print(f"kinds                {', '.join(f'{k} {n}' for k, n in sorted(kinds.items()))}")
    print(f"seconds              {seconds:.0f} on {os.cpu_count()} cores")
    print(f"python               {platform.python_version()}, {platform.platform()}")


if __name__ == "__main__":
    sys.exit(main())
