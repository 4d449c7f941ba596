"""`make bench`: what a login node pays. Needs root and Slurm, as `make slurm` does.

1. `fsdpq submit` next to plain sbatch and to a script that uses submitit, in turn, on one cluster.
2. One watch pass over 100, 1,000 and 10,000 runs: queries, processor time and memory.
"""

import compileall
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from orchestrator.cli.chosen import chosen_runs
from orchestrator.cli.follow import Printer
from orchestrator.launchplan.plan import LaunchPlan
from orchestrator.launchplan.policy import Policy
from orchestrator.rundir.layout import RunLayout
from orchestrator.runstore import store
from orchestrator.watching import watch
from tests.slurm.cluster import Cluster
from tests.slurm.user import COUNTER, FsdpqUser

ROUNDS = 10
SIZES = (100, 1_000, 10_000)
SUBMITIT = """
import submitit
executor = submitit.SlurmExecutor(folder="submitit-folder")
executor.update_parameters(time=5, partition="prod", wckey="")
print(executor.submit(print, "hello").job_id)
"""


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that ``action`` took."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def submissions(cluster: Cluster) -> dict[str, list[float]]:
    """Return the seconds of each submission, the three kinds in turn."""
    user = FsdpqUser(cluster)
    job = user.job_file("bench", script=str(COUNTER), args=["1", "0", "1"], partition="prod")
    (user.home / "peer.py").write_text(SUBMITIT)
    (user.home / "plain.sh").write_text("#!/bin/bash\n#SBATCH --partition=prod --time=5\ntrue\n")
    kinds: dict[str, Callable[[int], list[str]]] = {
        "sbatch": lambda n: ["sbatch", "plain.sh"],
        "submitit script": lambda n: [cluster.python, "peer.py"],
        "fsdpq submit": lambda n: user.argv("submit", str(job), "--set", f"name=bench-{n}"),
    }
    # A full cluster: nothing starts and disturbs the measurement.
    cluster.submit_prod(nodes=4, seconds=600)
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    environment = {"PYTHONPATH": str(cluster.repository)}
    for number in range(ROUNDS + 1):
        for kind, argv in kinds.items():
            words = argv(number)
            took = timed(lambda w=words: cluster.run(w, cwd=user.home, env=environment))  # type: ignore[misc]
            if number:  # the first round warms the caches up
                found[kind].append(took)
    return found


def many_runs(folder: Path, count: int) -> None:
    """Create run directories as `fsdpq submit` leaves them, each with one submitted job."""
    plan = LaunchPlan(
        run="bench",
        run_dir="",
        job_name="",
        site="bench",
        scheduler="slurm",
        nodes=2,
        nproc_per_node=8,
        cpus_per_node=None,
        workdir="/",
        directives=(),
        env=(),
        modules=(),
        python="python3",
        program=("train.py",),
        notice_signal="USR2",
        steps_total=None,
        policy=Policy(),
    )
    for number in range(count):
        layout = RunLayout(folder / f"run-{number}")
        text = json.dumps({**plan.to_json(), "run": layout.name, "job_name": f"run-{number}-x"})
        store.create(layout, {"plan.json": text})
        store.append(layout, "submitted", job_id=str(100_000 + number))


def fake_slurm(folder: Path, count: int) -> None:
    """Write an squeue that knows all the runs, and count how often it is asked."""
    facts = "RUNNING|0|None|2026-01-01T00:00:00|2026-01-01T00:01:00|N/A|0|spot|n[1-2]"
    rows = [f"{100_000 + n}|{facts}|run-{n}-x|" for n in range(count)]
    (folder / "rows").write_text("\n".join(rows) + "\n")
    for name in ("squeue", "sacct"):
        script = folder / name
        script.write_text(f"#!/bin/sh\necho {name} >> {folder}/asked\ncat {folder}/rows\n")
        script.chmod(0o755)


def watch_pass(folder: Path, count: int) -> dict[str, float]:
    """Return what one pass over ``count`` runs costs, in a process of its own.

    Seconds of processor time for the pass and for reading the plans before the first one, the
    largest memory in MB, and how often Slurm was asked.
    """
    many_runs(folder / "runs", count)
    fake_slurm(folder, count)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    # As `fsdpq watch` does, pass after pass.
    choose = partial(chosen_runs, [], folder / "runs", told=set(), known={})
    show = Printer().show
    began = time.process_time()
    choose()
    loaded = time.process_time()
    show(watch.once(choose()))
    first = time.process_time()
    show(watch.once(choose()))
    return {
        "load_s": loaded - began,
        "pass_s": time.process_time() - first,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "asked": len((folder / "asked").read_text().split()) / 2,
    }


def measured(count: int) -> dict[str, float]:
    """Run `watch_pass` in a fresh process, whose memory is its own."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "tests.bench", folder, str(count)]
        done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def main() -> None:
    """Print both tables."""
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
    # As pip does on installation; the users of the test cluster cannot write into the checkout.
    compileall.compile_dir("orchestrator", quiet=1)
    with Cluster() as cluster:
        print(cluster.run(["sbatch", "--version"]).stdout.strip())
        found = submissions(cluster)
    peer = statistics.median(found["submitit script"])
    print("\n| submission | median ms | against the submitit script |\n|---|---|---|")
    for kind, times in found.items():
        median = statistics.median(times)
        print(f"| {kind} | {median * 1000:.0f} | {median / peer:.2f} |")
    print("\n| runs | pass, CPU s | reading the plans, CPU s | memory MB | queries a pass |")
    print("|---|---|---|---|---|")
    for count in SIZES:
        cost = measured(count)
        print(
            f"| {count:,} | {cost['pass_s']:.2f} | {cost['load_s']:.2f} | {cost['memory_mb']:.0f} |"
            f" {cost['asked']:g} |"
        )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(watch_pass(Path(sys.argv[1]), int(sys.argv[2]))))
    else:
        main()
