"""What Slurm's accounting says of a user: accounts, QOS and their limits. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.slurm import words

# One list for the query and its parser; --parsable2 separates with |, and names hold none.
ASSOC_FIELDS = (
    "Cluster", "Account", "User", "Partition", "QOS", "DefaultQOS", "MaxWall", "MaxTRES", "GrpTRES",
)  # fmt: skip
QOS_FIELDS = (
    "Name", "Preempt", "PreemptMode", "GraceTime", "PreemptExemptTime", "Flags", "MaxWall",
    "MaxTRES", "MaxTRESPU", "GrpTRES",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """What a user may do under an account; without a user it is the account's own."""

    account: str
    user: str = ""
    partition: str | None = None
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    max_wall_s: int | None = None
    max_nodes: int | None = None
    group_gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A QOS and its limits.

    Attributes:
        preempts: The QOS whose jobs its own jobs can take the place of.
        mode: How its jobs are preempted; None is as the cluster does.
        beyond_partition: Whether its time limit goes before the partition's.
        max_nodes: Of one job, or of one user.
        max_gpus: Of one job, of one user, or of all: more would never start.
    """

    name: str
    preempts: tuple[str, ...] = ()
    mode: str | None = None
    grace_s: int = 0
    exempt_s: int | None = None
    beyond_partition: bool = False
    max_wall_s: int | None = None
    max_nodes: int | None = None
    max_gpus: int | None = None


def associations(text: str, *, cluster: str | None) -> tuple[Association, ...]:
    """Return the associations in rows of `sacctmgr show assoc`; of one cluster if it is known."""
    rows = list(_rows(text, ASSOC_FIELDS))
    return tuple(_association(row) for row in rows if row[1] and cluster in (None, row[0]))


def _association(row: Sequence[str]) -> Association:
    _, account, user, partition, qos, default_qos, wall, most, group = row
    return Association(
        account=account,
        user=user,
        partition=words.value(partition),
        qos=words.names(qos) or (),
        default_qos=words.value(default_qos),
        max_wall_s=words.seconds(wall),
        max_nodes=words.amount(most, "node"),
        group_gpus=words.amount(group, "gres/gpu"),
    )


def all_qos(text: str) -> tuple[Qos, ...]:
    """Return the QOS in rows of `sacctmgr show qos`."""
    return tuple(_qos(row) for row in _rows(text, QOS_FIELDS) if row[0])


def _qos(row: Sequence[str]) -> Qos:
    name, preempts, mode, grace, exempt, flags, wall, job, user, group = row
    return Qos(
        name=name,
        preempts=words.names(preempts) or (),
        mode=None if mode in ("", "cluster") else mode.lower(),
        grace_s=words.seconds(grace) or 0,
        exempt_s=words.seconds(exempt),
        beyond_partition="PartitionTimeLimit" in flags.split(","),
        max_wall_s=words.seconds(wall),
        max_nodes=_least(words.amount(text, "node") for text in (job, user, group)),
        max_gpus=_least(words.amount(text, "gres/gpu") for text in (job, user, group)),
    )


def default_account(text: str) -> str | None:
    r"""Return the account in the answer of `sacctmgr show user format=DefaultAccount`.

    >>> default_account("research\n"), default_account("")
    ('research', None)
    """
    return next((words.value(line) for line in text.splitlines() if line.strip()), None)


def _rows(text: str, fields: Sequence[str]) -> Iterator[list[str]]:
    for line in text.splitlines():
        row = [cell.strip() for cell in line.split("|")]
        if len(row) == len(fields):
            yield row


def _least(values: Iterator[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
