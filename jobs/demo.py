"""`make demo`: train, be preempted in the middle, come back, finish; then compare with a run that
was left alone.

Everything that matters is done by `fsdpq` commands, as a user would type them.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "jobs" / "quickstart.yaml"
RUNS = ROOT / "runs" / time.strftime("demo-%Y%m%d-%H%M%S")
FSDPQ = [sys.executable, "-m", "orchestrator"]
STEPS = 200
DRILL_AT = 80


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def shown(path: Path) -> str:
    """Return a path as seen from here, if it is below."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def fsdpq(*args: str) -> None:
    """Show a command and run it; end the demo where it fails."""
    say("$ fsdpq " + " ".join(args) + f" --runs {shown(RUNS)}")
    done = subprocess.run([*FSDPQ, *args, "--runs", str(RUNS)], check=False)
    if done.returncode != 0:
        sys.exit(f"the demo stops here: fsdpq {args[0]} exited with {done.returncode}")


def data(*args: str) -> Any:
    """Return what a command prints as JSON."""
    argv = [*FSDPQ, *args, "--json", "--runs", str(RUNS)]
    return json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def wait_for_step(run: str, step: int) -> None:
    shown = -1
    while (status := data("status", run))["state"] not in ("finished", "failed"):
        if status["step"] is not None and status["step"] != shown:
            shown = status["step"]
            loss = status["loss"]
            print(f"  step {shown}/{STEPS}  loss {loss:.4f}" if loss else "", flush=True)
            if shown >= step:
                return
        time.sleep(1)
    sys.exit(f"{run}: is {status['state']} before step {step}: {status['next']}")


def curve(run: str) -> dict[int, tuple[float, float]]:
    """Return (loss, gradient norm) of each step."""
    lines = (RUNS / run / "metrics.jsonl").read_text().splitlines()
    return {s["step"]: (s["loss"], s["grad_norm"]) for s in map(json.loads, lines)}


def compare() -> None:
    status = data("status", "interrupted")
    first, second = status["attempts"]
    one, other = curve("interrupted"), curve("straight")
    different = [step for step in other if one.get(step) != other[step]]
    last = first["last_step"]
    say("What happened")
    print(f"  attempts             {len(status['attempts'])}")
    print(f"  steps lost           {sum(a['steps_lost'] for a in status['attempts'])}")
    print(f"  stopped after step   {last}, loss {one[last][0]:.6f}")
    print(f"  resumed with step    {second['first_step']}, loss {one[last + 1][0]:.6f}")
    print(f"  left alone           {last}, loss {other[last][0]:.6f}")
    print(f"                       {last + 1}, loss {other[last + 1][0]:.6f}")
    print(f"  steps that differ in loss or gradient norm by a single bit: {len(different)}")
    print(f"  final loss           {one[STEPS][0]:.6f} and {other[STEPS][0]:.6f}")
    if different:
        sys.exit(f"the curves differ from step {different[0]} on; that is a bug")


def main() -> None:
    started = time.monotonic()
    fsdpq("submit", shown(JOB), "--set", "name=interrupted")
    wait_for_step("interrupted", DRILL_AT)
    fsdpq("drill", "interrupted")
    fsdpq("watch", "interrupted", "--every", "5")
    fsdpq("status", "interrupted")
    say("The same job, left alone")
    fsdpq("submit", shown(JOB), "--set", "name=straight", "--follow")
    compare()
    print(f"\n{time.monotonic() - started:.0f} s. Look at the runs with")
    print(f"  {shown(Path(sys.executable).parent / 'fsdpq')} status --runs {shown(RUNS)}")


if __name__ == "__main__":
    main()
