"""Run the checks that are on, and say what was found."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.preflight import hcas, storage
from orchestrator.preflight.all_reduce import check_all_reduce
from orchestrator.preflight.ask_gpus import check_gpus
from orchestrator.preflight.bandwidth import check_bandwidth
from orchestrator.preflight.expected import Expected
from orchestrator.preflight.findings import Findings, total


@dataclass(frozen=True, slots=True)
class Place:
    """Where this node's check takes place, from what node.sh exports.

    Attributes:
        number: The node's number in the job: its node rank.
        host: Its name, as Slurm writes it.
        temporary: A folder on the node's own disk.
    """

    number: str
    host: str
    run_dir: Path
    attempt_dir: Path
    checkpoints: Path
    temporary: str

    @classmethod
    def of(cls, environment: Mapping[str, str], *, hostname: str) -> "Place":
        """Return the place that ``environment`` describes.

        Raises:
            KeyError: A variable that node.sh sets is missing.
        """
        run_dir = Path(environment["FSDPQ_RUN_DIR"])
        return cls(
            number=environment.get("FSDPQ_NODE") or environment.get("SLURM_NODEID", "0"),
            host=environment.get("SLURMD_NODENAME") or hostname,
            run_dir=run_dir,
            attempt_dir=Path(environment["FSDPQ_ATTEMPT_DIR"]),
            checkpoints=Path(environment.get("FSDPQ_CHECKPOINT_DIR") or run_dir / "checkpoints"),
            temporary=environment.get("FSDPQ_LOCAL_DIR") or environment.get("TMPDIR") or "/tmp",
        )

    @property
    def result(self) -> Path:
        """The file of what was found."""
        return self.attempt_dir / "preflight" / f"node-{self.number}.json"


def check(expected: Expected, place: Place, environment: Mapping[str, str]) -> Findings:
    """Return all that the checks found on this node."""
    deadline = time.monotonic() + expected.timeout_s
    # Started first: while the file system works, the driver does.
    writing = (
        storage.ask(place.checkpoints, node=place.number) if expected.asks("storage") else None
    )
    found = check_gpus(expected, visible=environment.get("CUDA_VISIBLE_DEVICES"), deadline=deadline)
    if expected.asks("hcas"):
        found += hcas.judge(hcas.read_ports(), expected)
    found += storage.check_rooms(expected, temporary=place.temporary)
    if writing is not None:
        found += storage.judge(writing.finish(deadline), path=place.checkpoints)
    if expected.asks("all_reduce") and not found.problems:
        ranks = check_all_reduce(expected, temporary=place.temporary, environment=environment)
        found = total([found, ranks])
    if expected.asks("bandwidth") and not found.problems:
        found += check_bandwidth(
            expected, host=place.host, temporary=place.temporary, environment=environment
        )
    return found


def lines(found: Findings, place: Place) -> Iterator[str]:
    """Yield what to print: a line for each problem, and for each note."""
    node = f"fsdpq: node {place.number} ({place.host})"
    for problem in found.problems:
        yield f"{node} is unfit: {problem.check}: {problem.what}"
    for text in found.notes:
        yield f"{node}: note: {text}"
