"""Names of the files in a run directory. Pure: nothing here touches the disk.

<runs>/<name>/
  job.yaml            the job file as the user gave it
  spec.json           the resolved job
  plan.json           every value the scripts were rendered from
  preflight.json      what each node must show before torchrun starts on it
  train.json          the reference trainer's part of the job (absent for a script of yours)
  script.sbatch       what the scheduler runs; `sbatch script.sbatch` by hand resumes the run
  node.sh             what each node runs
  recorder.py         notes what an attempt runs with: packages, modules, container
  code/               the program as it was when it was submitted  (absent with --live-code)
  code.json           what is in it: repository, commit, what was left out
  code.diff           what differed from the commit
  fsdpq/              fsdpq's own package as it was then           (absent with --live-code)
  events.jsonl        append-only: what fsdpq saw, decided and did, and why
  finished.json       the end mark: the last step is done        (written by the training script)
  cancelled.json      the cancel mark: nobody restarts this run  (written by `fsdpq cancel`)
  overrides.json      what attempts do differently from the job file, such as a smaller micro-batch
  stalled             there since a rank stood still for too long; the next attempt removes it
  no-progress         how many attempts in a row stopped without a new step (batch shell)
  metrics.jsonl       one line a step, from rank 0
  saves.jsonl         one line a save, from rank 0, and one for each interval that `auto` chose
  data/               shards that the run made of sources that are none, and what its files were
  tensorboard/        event files, where the job asks for them; wandb/ is Weights & Biases'
  compiled/           what torch.compile made, for the next attempt
  checkpoints/step-N/ published checkpoints only
  attempts/N/         one start of the script; nodes/ and stacks/ in it say how far its ranks are,
                      bandwidth.json how fast they talk to one another
  environments/       lists of installed packages, one for each that an attempt had
  claims/             who restarts what, so that two watchers never do the same
  submitit/           submitit's own folder
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class AttemptLayout:
    """Names of the files of one attempt."""

    root: Path

    @property
    def start(self) -> Path:
        """JSON from the batch shell: job_id, restart, nodes, started_at (seconds since 1970).

        `nodes` is a node list in the order of the node ranks; `switches`, where Slurm knows of a
        topology, the leaf switches or blocks in that order.
        """
        return self.root / "start.json"

    @property
    def exit(self) -> Path:
        """JSON from the batch shell at its end: code, action, why, ended_at."""
        return self.root / "exit.json"

    @property
    def resume(self) -> Path:
        """JSON from rank 0: the step this attempt starts from, and what it quarantined."""
        return self.root / "resume.json"

    @property
    def progress(self) -> Path:
        """JSON from rank 0, replaced at most once a second: step, at, phase, limit_s."""
        return self.root / "progress.json"

    @property
    def status(self) -> Path:
        """JSON from the workers: how the attempt ended, as they saw it."""
        return self.root / "status.json"

    @property
    def startup(self) -> Path:
        """JSON from rank 0 of the reference trainer: what its start took, part by part."""
        return self.root / "startup.json"

    @property
    def errors(self) -> Path:
        """Folder of the error files, one a rank that raised."""
        return self.root / "errors"

    @property
    def logs(self) -> Path:
        """Folder of torchrun's logs, one folder a node."""
        return self.root / "logs"

    @property
    def reclaims(self) -> Path:
        """Folder of what a cloud said: node-K.json with node, word, what, at, ends_at."""
        return self.root / "reclaims"

    @property
    def environment(self) -> Path:
        """JSON from the first node: what the attempt ran with (`orchestrator.recorder`)."""
        return self.root / "environment.json"

    @property
    def nccl(self) -> Path:
        """Folder of NCCL's logs, one a process, "<host>.<pid>.log"."""
        return self.root / "nccl"

    @property
    def fabric(self) -> Path:
        """JSON: the verdict on the network, from the monitor of the first node, or a watcher."""
        return self.root / "fabric.json"

    @property
    def preflight(self) -> Path:
        """Folder of what the nodes' checks found before the start, one file a node."""
        return self.root / "preflight"

    @property
    def bandwidth(self) -> Path:
        """JSON of what the bandwidth sweep measured (`orchestrator.bandwidth`)."""
        return self.root / "bandwidth.json"

    @property
    def nodes(self) -> Path:
        """Folder of what the monitor of each node says of its ranks: K.json."""
        return self.root / "nodes"

    @property
    def stacks(self) -> Path:
        """Folder of the Python stacks of ranks that made no progress any more: rank-R.txt."""
        return self.root / "stacks"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """Names of the files of one run."""

    FINISHED: ClassVar[str] = "finished.json"
    CANCELLED: ClassVar[str] = "cancelled.json"
    STALLED: ClassVar[str] = "stalled"

    root: Path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.root.name

    @property
    def job_file(self) -> Path:
        """The job file as the user gave it."""
        return self.root / "job.yaml"

    @property
    def spec(self) -> Path:
        """The resolved job."""
        return self.root / "spec.json"

    @property
    def plan(self) -> Path:
        """Every value that the scripts were rendered from."""
        return self.root / "plan.json"

    @property
    def train(self) -> Path:
        """The reference trainer's configuration."""
        return self.root / "train.json"

    @property
    def preflight(self) -> Path:
        """What each node must show before torchrun starts on it."""
        return self.root / "preflight.json"

    @property
    def script(self) -> Path:
        """The batch script."""
        return self.root / "script.sbatch"

    @property
    def node_script(self) -> Path:
        """The script of each node."""
        return self.root / "node.sh"

    @property
    def code(self) -> Path:
        """Folder of the kept program."""
        return self.root / "code"

    @property
    def code_record(self) -> Path:
        """What is kept of the program, and where it comes from."""
        return self.root / "code.json"

    @property
    def code_diff(self) -> Path:
        """What differed from the commit."""
        return self.root / "code.diff"

    @property
    def fsdpq(self) -> Path:
        """Folder of the kept package `orchestrator`."""
        return self.root / "fsdpq"

    @property
    def recorder(self) -> Path:
        """The script that notes what an attempt runs with."""
        return self.root / "recorder.py"

    @property
    def environments(self) -> Path:
        """Folder of the lists of installed packages, named by their hash."""
        return self.root / "environments"

    @property
    def events(self) -> Path:
        """The event log."""
        return self.root / "events.jsonl"

    @property
    def finished(self) -> Path:
        """The end mark."""
        return self.root / self.FINISHED

    @property
    def cancelled(self) -> Path:
        """The cancel mark."""
        return self.root / self.CANCELLED

    @property
    def stalled(self) -> Path:
        """The mark of a rank that stood still for too long."""
        return self.root / self.STALLED

    @property
    def overrides(self) -> Path:
        """What attempts do differently from the job file."""
        return self.root / "overrides.json"

    @property
    def no_progress(self) -> Path:
        """Counter of attempts that stopped without a new step."""
        return self.root / "no-progress"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.root / "tensorboard"

    @property
    def metrics(self) -> Path:
        """One JSON line a step."""
        return self.root / "metrics.jsonl"

    @property
    def compiled(self) -> Path:
        """What torch.compile made: a file for each local rank of the first node."""
        return self.root / "compiled"

    @property
    def data(self) -> Path:
        """Folder of what the run made of its data, and what that was made of."""
        return self.root / "data"

    @property
    def saves(self) -> Path:
        """One JSON line a save."""
        return self.root / "saves.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the published checkpoints."""
        return self.root / "checkpoints"

    @property
    def attempts(self) -> Path:
        """Folder of the attempts."""
        return self.root / "attempts"

    @property
    def claims(self) -> Path:
        """Folder of the claims of watchers."""
        return self.root / "claims"

    @property
    def submitit(self) -> Path:
        """Submitit's own folder."""
        return self.root / "submitit"

    @property
    def output(self) -> Path:
        """What the batch shell prints, appended over all attempts."""
        return self.root / "batch.log"

    @staticmethod
    def attempt_numbers(names: Iterable[str]) -> list[int]:
        """Return the numbers of the attempts among the folders called ``names``, in order.

        Of the batch shell's own making: no other digits, no number that it would never count to.
        """
        ours = (name for name in names if name.isascii() and name.isdigit() and len(name) < 9)
        return sorted(int(name) for name in ours)

    def attempt(self, number: int) -> AttemptLayout:
        """Return the names of attempt ``number`` (1, 2, ...)."""
        return AttemptLayout(self.attempts / str(number))
