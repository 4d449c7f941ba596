"""What Slurm grants: the terms of partitions and QOS, and quotas over several of them."""

from typing import Literal

from pydantic import model_validator

from orchestrator.clouds import Cloud
from orchestrator.keys.counts import Count, LongWaits, WholeNumber
from orchestrator.keys.fields import Line, SbatchValue, Strict, TimeLimit
from orchestrator.profile.hardware import GpuProfile


class Terms(Strict):
    """What a partition or a QOS grants to a job, and how it takes it back.

    Attributes:
        default_time_limit: What a job gets that names none.
        preempt: What Slurm does with a job that is preempted.
        grace_s: Between its notice and its end.
        exempt_s: How long after its start a job is safe from preemption.
        requeue_default: Whether a job is put back that does not say --requeue.
        preempt_signal: What opens the grace time: the job's own --signal, or SIGTERM alone.
    """

    time_limit: TimeLimit | None = None
    min_time_limit: TimeLimit | None = None
    default_time_limit: TimeLimit | None = None
    max_nodes: Count | None = None
    max_gpus_per_user: Count | None = None
    preempt: Literal["off", "requeue", "cancel", "suspend"] = "off"
    grace_s: LongWaits | None = None
    exempt_s: LongWaits | None = None
    requeue_default: bool | None = None
    preempt_signal: Literal["user", "TERM"] | None = None
    priority_tier: WholeNumber | None = None
    note: Line | None = None


class PartitionProfile(Terms):
    """One partition.

    Attributes:
        gpu: What its nodes have, where they are not like the site's others.
        nodes: How many there are.
        qos: The QOS that its jobs have to name.
        allow_qos: The only QOS that it takes; any, if left out. Slurm heeds deny_qos only then.
        deny_qos: QOS that it does not take.
        exclusive: Whether a job gets whole nodes anyway.
    """

    gpu: GpuProfile | None = None
    cpus_per_node: Count | None = None
    nodes: Count | None = None
    qos: SbatchValue | None = None
    allow_qos: tuple[SbatchValue, ...] = ()
    deny_qos: tuple[SbatchValue, ...] = ()
    constraint: SbatchValue | None = None
    comment: SbatchValue | None = None
    exclusive: bool | None = None
    cloud: Cloud | None = None

    def takes(self, qos: str) -> bool:
        """Return whether its jobs may have ``qos``. Source: slurm.conf(5), AllowQos, DenyQos."""
        return qos in self.allow_qos if self.allow_qos else qos not in self.deny_qos


class QosProfile(Terms):
    """One QOS. What it says of a term goes before what the partition says.

    Attributes:
        beyond_partition: Whether its limits may be larger than the partition's (Slurm's flags
            PartitionTimeLimit and PartitionMaxNodes); else the smaller one holds.
    """

    beyond_partition: bool = False


class PreemptibleProfile(Terms):
    """How a job asks for what is cheap because it can be taken away (`preemptible: true`)."""

    partition: SbatchValue | None = None
    qos: SbatchValue | None = None
    comment: SbatchValue | None = None

    @model_validator(mode="after")
    def _some_way(self) -> "PreemptibleProfile":
        if not (self.partition or self.qos or self.comment):
            raise ValueError("give the partition, the qos or the comment that a job asks with")
        return self


class Quota(Strict):
    """What jobs of one user, account or project may have together.

    Attributes:
        below_time_limit: It counts only for jobs whose time limit is below this.
        partitions: Those it counts over; all of them, if left out.
    """

    gpus_per_user: Count | None = None
    gpus_per_account: Count | None = None
    nodes_per_user: Count | None = None
    jobs_per_user: Count | None = None
    below_time_limit: TimeLimit | None = None
    partitions: tuple[SbatchValue, ...] = ()
    note: Line | None = None
