"""Commands to Slurm as argument lists. Pure."""

from collections.abc import Sequence

from orchestrator.slurm.accounting import ASSOC_FIELDS, QOS_FIELDS
from orchestrator.slurm.inventory import SINFO_FORMAT
from orchestrator.slurm.parse import SACCT_FIELDS, SQUEUE_FIELDS


def squeue(uid: int) -> list[str]:
    """Return the query for all jobs of the user ``uid`` that the controller still knows.

    The number and not the name: for a name that cannot be looked up squeue prints no jobs and
    exits with 0 (measured on 22.05), as if all were gone.

    `-t all` matters: without it a job that has just ended looks like one that never was. The
    field list drives the parser as well. Job names may hold anything, so the name comes last.
    """
    fields = ",".join(f"{name}:{width}|" for name, width in SQUEUE_FIELDS)
    return ["squeue", "--noheader", "--states=all", f"--user={uid}", f"--Format={fields}"]


def sacct(ids: Sequence[str]) -> list[str]:
    """Return the query for the accounting records of ``ids``, every requeue of each."""
    fields = ",".join(SACCT_FIELDS)
    return [
        "sacct",
        "--noheader",
        "--parsable2",
        "--allocations",
        "--duplicates",
        f"--jobs={','.join(ids)}",
        f"--format={fields}",
    ]


def sbatch(script: str, *, options: Sequence[str] = ()) -> list[str]:
    """Return the submission of ``script``; ``options`` win over those in it."""
    return ["sbatch", "--parsable", *options, script]


def test_only(script: str) -> list[str]:
    """Return the question whether Slurm would take ``script``; nothing is submitted."""
    return ["sbatch", "--test-only", script]


def exclude(job_id: str, nodes: Sequence[str]) -> list[str]:
    """Return the command that has a pending job leave out ``nodes`` and no others."""
    return ["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}"]


def node_count(partition: str | None) -> list[str]:
    """Return the query for the nodes of a partition that can run jobs, one a line.

    Those that are down or drained do not count; without a partition the default one is meant,
    which sinfo cannot be asked for, so its mark (*) is printed.
    """
    chosen = [f"--partition={partition}"] if partition else []
    return ["sinfo", "--noheader", "--Node", "--responding", *chosen, "--format=%N|%T|%P"]


def show_job(job_id: str) -> list[str]:
    """Return the query for all that the controller knows of one job, as key=value words."""
    return ["scontrol", "--oneliner", "show", "job", job_id]


def requeue(job_id: str) -> list[str]:
    """Return the command that starts ``job_id`` again."""
    return ["scontrol", "requeue", job_id]


def start_now(job_id: str) -> list[str]:
    """Return the command that takes back the two minutes' delay of a requeue."""
    return ["scontrol", "update", f"JobId={job_id}", "StartTime=now"]


def cancel(job_id: str) -> list[str]:
    """Return the command that ends ``job_id``."""
    return ["scancel", job_id]


def notify(job_id: str, signal: str) -> list[str]:
    """Return the command that sends ``signal`` to the job's steps, not to its batch shell."""
    return ["scancel", f"--signal={signal}", job_id]


def notify_batch(job_id: str, signal: str) -> list[str]:
    """Return the command that sends ``signal`` to the job's batch shell, not to its steps."""
    return ["scancel", "--batch", f"--signal={signal}", job_id]


def show_config() -> list[str]:
    """Return the query for the cluster's settings."""
    return ["scontrol", "show", "config"]


def show_partitions() -> list[str]:
    """Return the query for all partitions, also those that are hidden from this user.

    One of those may well be what preempts the user's jobs.
    """
    return ["scontrol", "--oneliner", "--all", "show", "partition"]


def show_nodes() -> list[str]:
    """Return the query for all nodes."""
    return ["scontrol", "--oneliner", "show", "node"]


def node_rows() -> list[str]:
    """Return the query for the nodes of each partition, those that are alike in one row."""
    return ["sinfo", "--noheader", "--exact", f"--format={SINFO_FORMAT}"]


def show_associations(*where: str) -> list[str]:
    """Return the query for associations, such as those `user=alice`."""
    return [*_SACCTMGR, "associations", *where, f"format={','.join(ASSOC_FIELDS)}"]


def show_default_account(user: str) -> list[str]:
    """Return the query for the account that jobs of ``user`` count for if they name none."""
    return [*_SACCTMGR, "user", f"name={user}", "format=DefaultAccount"]


def show_qos() -> list[str]:
    """Return the query for all QOS and their limits."""
    return [*_SACCTMGR, "qos", f"format={','.join(QOS_FIELDS)}"]


_SACCTMGR = ("sacctmgr", "--noheader", "--parsable2", "--readonly", "show")


def srun_help() -> list[str]:
    """Return the command that lists srun's options, those of the site's plug-ins too."""
    return ["srun", "--help"]


def named_jobs(name: str) -> list[str]:
    """Return the query for the state of the jobs called ``name``, and why they wait."""
    return ["squeue", "--noheader", f"--name={name}", "--format=%T %r"]


def cancel_named(name: str) -> list[str]:
    """Return the command that ends the jobs called ``name``; those of others are out of reach."""
    return ["scancel", f"--name={name}"]


def probe(script: str, *, name: str, nodes: int, minutes: int, options: Sequence[str]) -> list[str]:
    """Return the command that runs the text ``script`` once on each of ``nodes`` nodes.

    The script is an argument: nothing has to lie on a file system that the nodes see. Each line
    of the answer begins with the number of its task (--label).
    """
    return [
        "srun", "--label", f"--job-name={name}", f"--nodes={nodes}", f"--ntasks={nodes}",
        "--ntasks-per-node=1", f"--time={minutes}", "--input=none", "--mpi=none", *options,
        "bash", "-c", script,
    ]  # fmt: skip
