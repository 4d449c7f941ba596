"""`make bench`: what a login node pays. Needs root and Slurm, as `make slurm` does.

1. `fsdpq submit` next to plain sbatch and to a script that uses submitit, in turn, on one cluster.
2. One watch pass over 10,000 runs: queries and processor time.
"""

import compileall
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator import store, watch
from orchestrator.layout import RunLayout
from orchestrator.plan import LaunchPlan
from orchestrator.policy import Policy
from tests.slurm.cluster import Cluster
from tests.slurm.user import COUNTER, FsdpqUser

ROUNDS = 10
RUNS = 10_000
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


def many_runs(folder: Path) -> list[tuple[RunLayout, LaunchPlan]]:
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
    for number in range(RUNS):
        layout = RunLayout(folder / f"run-{number}")
        text = json.dumps({**plan.to_json(), "run": layout.name, "job_name": f"run-{number}-x"})
        store.create(layout, {"plan.json": text})
        store.append(layout, "submitted", job_id=str(100_000 + number))
    return [(layout, store.load_plan(layout)) for layout in store.all_runs(folder)]


def fake_slurm(folder: Path) -> None:
    """Write an squeue that knows all the runs, and count how often it is asked."""
    facts = "RUNNING|0|None|2026-01-01T00:00:00|2026-01-01T00:01:00|N/A|0|spot|n[1-2]"
    rows = [f"{100_000 + n}|{facts}|run-{n}-x|" for n in range(RUNS)]
    (folder / "rows").write_text("\n".join(rows) + "\n")
    for name in ("squeue", "sacct"):
        script = folder / name
        script.write_text(f"#!/bin/sh\necho {name} >> {folder}/asked\ncat {folder}/rows\n")
        script.chmod(0o755)


def watch_pass(folder: Path) -> tuple[float, float, list[str]]:
    """Return the processor and wall seconds of one pass, and what was asked of Slurm."""
    runs = many_runs(folder / "runs")
    fake_slurm(folder)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    before = resource.getrusage(resource.RUSAGE_SELF)
    wall = timed(lambda: watch.once(runs))
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall, (folder / "asked").read_text().split()


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
    with tempfile.TemporaryDirectory() as folder:
        cpu, wall, asked = watch_pass(Path(folder))
    print(f"\none watch pass over {RUNS} runs: {cpu:.2f} s CPU, {wall:.2f} s, asked {asked}")


if __name__ == "__main__":
    main()
