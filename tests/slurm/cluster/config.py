"""What the test cluster is, and the files that tell Slurm so. Pure: no disk, no process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NETWORK = "10.231.7"
CONTROLLER = "ctl"
LOGIN = "login"
DATABASE = "slurm_acct_db"
SOCKET = "/run/mysqld/mysqld.sock"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What daemons and root's commands see of the environment; nothing of who starts them.
SYSTEM_ENVIRONMENT = {
    "PATH": SYSTEM_PATH,
    "LANG": "C.UTF-8",
    "MYSQL_UNIX_PORT": SOCKET,  # the client library's own idea of the place differs by release
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmVersion:
    """One Slurm release and where it is installed.

    Attributes:
        release: The two numbers of the release, such as `(22, 5)`.
        root: Directory that the daemons and clients run in. Another release than the machine's
            own is unpacked into a directory (debootstrap) and run from there by chroot.
    """

    release: tuple[int, int]
    root: Path = Path("/")

    @classmethod
    def parse(cls, text: str) -> SlurmVersion:
        """A version from `RELEASE:ROOT`, such as `24.11:/srv/slurm-24.11`."""
        release, _, root = text.partition(":")
        year, month = release.split(".")
        return cls(release=(int(year), int(month)), root=Path(root))

    @property
    def signals_in_preempt_parameters(self) -> bool:
        """Whether the user signal on preemption is a key of PreemptParameters.

        Source: measured; 22.05 refuses the key there and knows it in SlurmctldParameters.
        """
        return self.release >= (24, 11)

    @property
    def can_run_without_cgroups(self) -> bool:
        """Whether cgroup.conf may say `CgroupPlugin=disabled`."""
        return self.release >= (24, 11)


SLURM_22_05 = SlurmVersion(release=(22, 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An ordinary account of the cluster, with its own Slurm account."""

    name: str
    uid: int
    account: str


ROOT = User(name="root", uid=0, account="root")
USERS = (
    User(name="alice", uid=20001, account="research"),
    User(name="bob", uid=20002, account="vision"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeHost:
    """One compute host as Slurm is made to see it.

    Attributes:
        more_gpus: Other types of GPU that it has as many of.
        devices: Device files of its GPUs where they are real, such as `/dev/nvidia2`; the host then
            sees no other ones. Without any, the cluster makes some.
        features: What a job may ask for with --constraint.
    """

    name: str
    gpu: str = "h100"
    more_gpus: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    gpus: int = 2
    cpus: int = 8
    memory_mb: int = 64000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A network that Slurm knows of.

    Attributes:
        plugin: "tree" or "block" (24.11 and later know the second one).
        lines: The lines of topology.conf.
    """

    plugin: str
    lines: tuple[str, ...]


HOSTS = (*(ComputeHost(name=f"n{i}") for i in range(1, 5)), ComputeHost(name="n5", gpu="a100"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Everything that a test may want to differ.

    Attributes:
        user_signal: A preemption sends the signal of `--signal` first (else SIGTERM only).
        default_scheduler: Slurm's own scheduling intervals instead of quick ones.
        min_job_age_s: How long the controller remembers a finished job.
        grace_s: GraceTime of the partitions that have one.
        small_disks: How many shared file systems of SMALL_DISK_MIB there are besides the large one.
        topology: The network; only a new cluster can have another plugin.
        strict: A job beyond its partition's limits, or with a QOS that its user may not have, is
            refused when it is submitted; else it waits for ever, or runs.
        partitions: Lines of slurm.conf that take the place of the usual partitions.
        accounting: Whether there is any; without it, neither slurmdbd nor MariaDB is needed.
    """

    version: SlurmVersion = SLURM_22_05
    hosts: tuple[ComputeHost, ...] = HOSTS
    user_signal: bool = True
    default_scheduler: bool = False
    min_job_age_s: int = 300
    grace_s: int = 10
    kill_wait_s: int = 5
    slurmd_timeout_s: int = 15
    small_disks: int = 0
    topology: Topology | None = None
    strict: bool = False
    partitions: tuple[str, ...] = ()
    accounting: bool = True


SMALL_DISK_MIB = 16


def small_disk(work: Path, number: int) -> Path:
    """Where the small shared file system with a number (0, 1, ...) is mounted."""
    return work / "shared" / f"disk-{number}"


def addresses(config: ClusterConfig) -> dict[str, str]:
    """Host name to IPv4 address, the controller and the login node included."""
    names = [CONTROLLER, LOGIN, *(host.name for host in config.hosts)]
    return {name: f"{NETWORK}.{number}" for number, name in enumerate(names, start=1)}


def slurm_conf(config: ClusterConfig, work: Path) -> str:
    """The text of slurm.conf."""
    lines = [
        *_identity(config, work),
        *_jobs(config),
        *_scheduling(config),
        *_preemption(config),
        *_nodes(config),
        *_partitions(config),
    ]
    return "\n".join(lines) + "\n"


def _identity(config: ClusterConfig, work: Path) -> list[str]:
    return [
        "ClusterName=fsdpq",
        f"SlurmctldHost={CONTROLLER}({addresses(config)[CONTROLLER]})",
        "SlurmUser=root",
        "AuthType=auth/munge",
        f"StateSaveLocation={work}/state/slurmctld",
        f"SlurmdSpoolDir={work}/state/slurmd.%n",
        f"SlurmctldPidFile={work}/state/slurmctld.pid",
        f"SlurmdPidFile={work}/state/slurmd.%n.pid",
        f"SlurmctldLogFile={work}/log/slurmctld.log",
        f"SlurmdLogFile={work}/log/slurmd.%n.log",
        "SlurmctldDebug=debug",
        "SlurmdDebug=verbose",
        # Nodes read the file from the same disk: a changed one is the same everywhere.
        "DebugFlags=NO_CONF_HASH",
        *(_accounting(config) if config.accounting else []),
    ]


def _accounting(config: ClusterConfig) -> list[str]:
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={CONTROLLER}",
        f"AccountingStorageEnforce=associations{',qos' if config.strict else ''}",
        "AccountingStorageTRES=gres/gpu",
    ]


def _jobs(config: ClusterConfig) -> list[str]:
    return [
        "MpiDefault=none",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "ReturnToService=2",
        "JobRequeue=1",
        *(["EnforcePartLimits=ALL"] if config.strict else []),
        "InactiveLimit=0",
        f"KillWait={config.kill_wait_s}",
        f"MinJobAge={config.min_job_age_s}",
        f"SlurmdTimeout={config.slurmd_timeout_s}",
    ]


def _scheduling(config: ClusterConfig) -> list[str]:
    lines = [
        "SchedulerType=sched/backfill",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=1000",
        "PriorityType=priority/basic",
    ]
    if not config.default_scheduler:
        lines.append("SchedulerParameters=sched_interval=2,bf_interval=2")
    if config.topology is not None:
        lines.append(f"TopologyPlugin=topology/{config.topology.plugin}")
    return lines


def _preemption(config: ClusterConfig) -> list[str]:
    lines = ["PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE"]
    if config.user_signal and config.version.signals_in_preempt_parameters:
        lines.append("PreemptParameters=send_user_signal")
    elif config.user_signal:
        lines.append("SlurmctldParameters=preempt_send_user_signal")
    return lines


def _nodes(config: ClusterConfig) -> list[str]:
    # config_overrides: believe this file rather than the hardware of the machine below.
    return ["SlurmdParameters=config_overrides", "GresTypes=gpu"] + [
        f"NodeName={host.name} NodeAddr={addresses(config)[host.name]} CPUs={host.cpus}"
        f" RealMemory={host.memory_mb} Gres={_gres(host)}{_features(host)} State=UNKNOWN"
        for host in config.hosts
    ]


def _gres(host: ComputeHost) -> str:
    return ",".join(f"gpu:{gpu}:{host.gpus}" for gpu in (host.gpu, *host.more_gpus))


def _features(host: ComputeHost) -> str:
    return f" Features={','.join(host.features)}" if host.features else ""


def _partitions(config: ClusterConfig) -> list[str]:
    if config.partitions:
        return list(config.partitions)
    h100 = _names(config, gpu="h100")
    low = f"PriorityTier=1 MaxTime=INFINITE DefaultTime=60 Nodes={h100}"
    grace = f"GraceTime={config.grace_s}"
    lines = [
        f"PartitionName=spot Default=YES PreemptMode=REQUEUE {grace} {low}",
        f"PartitionName=spotcancel PreemptMode=CANCEL {grace} {low}",
        f"PartitionName=nograce PreemptMode=REQUEUE GraceTime=0 {low}",
        f"PartitionName=prod PriorityTier=100 PreemptMode=OFF MaxTime=INFINITE Nodes={h100}",
    ]
    if a100 := _names(config, gpu="a100"):
        lines.append(f"PartitionName=a100 PreemptMode=REQUEUE {grace} PriorityTier=1 Nodes={a100}")
    return lines


def _names(config: ClusterConfig, *, gpu: str) -> str:
    return ",".join(host.name for host in config.hosts if host.gpu == gpu)


def gres_conf(config: ClusterConfig, work: Path) -> str:
    """The text of gres.conf; without a File the count would be 0 and the node refused."""
    return "".join(
        f"NodeName={host.name} Name=gpu Type={gpu} File={_files(host, first, work)}\n"
        for host in config.hosts
        for first, gpu in zip(range(0, 1000, host.gpus), (host.gpu, *host.more_gpus), strict=False)
    )


def _files(host: ComputeHost, first: int, work: Path) -> str:
    made = f"{work}/state/nvidia[{first}-{first + host.gpus - 1}]"
    return ",".join(host.devices) or made


def cgroup_conf(config: ClusterConfig) -> str:
    """The text of cgroup.conf: jobs are not confined, so as little as the version allows."""
    if config.version.can_run_without_cgroups:
        return "CgroupPlugin=disabled\n"
    return "IgnoreSystemd=yes\n"


def slurmdbd_conf(work: Path) -> str:
    """The text of slurmdbd.conf; `localhost` makes the client use MariaDB's socket."""
    lines = [
        f"DbdHost={CONTROLLER}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        f"LogFile={work}/log/slurmdbd.log",
        f"PidFile={work}/state/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=root",
        f"StorageLoc={DATABASE}",
    ]
    return "\n".join(lines) + "\n"


def hosts_file(config: ClusterConfig) -> str:
    """The text of /etc/hosts."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    lines += [f"{address} {name}" for name, address in addresses(config).items()]
    return "\n".join(lines) + "\n"


def passwd_line(user: User, home: Path) -> str:
    """The line of /etc/passwd for one user."""
    return f"{user.name}:x:{user.uid}:{user.uid}:{user.name}:{home}:/bin/bash\n"


def group_line(user: User) -> str:
    """The line of /etc/group for the group of one user."""
    return f"{user.name}:x:{user.uid}:\n"


def shadow_file(passwd: str) -> str:
    """The text of /etc/shadow: every account is known to PAM, and none has a password.

    Without it, `su` fails, which slurmd runs for `sbatch --export=NONE`.
    """
    return "".join(f"{line.split(':')[0]}:*:::::::\n" for line in passwd.splitlines())
