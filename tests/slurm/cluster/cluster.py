"""A real Slurm cluster on this machine: its life, its faults and its settings."""

from __future__ import annotations

import dataclasses
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from . import daemons
from .config import CONTROLLER, SMALL_DISK_MIB, ClusterConfig, addresses, small_disk
from .host import Host, switch_setup
from .mounts import bind, fill_root, needed_paths, open_closed_directories, quoted
from .namespace import open_namespace
from .queue import Queue
from .workdir import make_work_folder, write_slurm_conf

# Removes the folder once the namespace is gone, however the process that made it ended.
GUARD = ("sh", "-c", 'work=$1; shift; "$@"; rm -rf -- "$work"', "guard")
# The first process of all waits on a pipe from the maker: at its end, the kernel kills the rest.
STAY = "read -r _ || true"
MACHINE = Path("/")
ETC_FILES = ("passwd", "group", "shadow", "hosts")
SHOWN_IN_ROOT = (Path("/proc"), Path("/sys"), Path("/dev"), Path("/run"))


class Cluster(Queue):
    """A controller with accounting, a login node and compute hosts.

    It ends with the process that made it, also if that one is killed.

    Attributes:
        config: The present configuration.
    """

    def __init__(self, config: ClusterConfig | None = None) -> None:
        """Open the process tree; `start` fills it."""
        self._initial = self.config = config or ClusterConfig()
        work = make_work_folder(self.config)
        stay = f"exec chroot {quoted(self.config.version.root)} bash -c {STAY!r}"
        setup = _setup(self.config, work)
        self._tree = open_namespace(setup, stay=stay, guard=[*GUARD, str(work)])
        self._services = daemons.Services(self._tree, work / "log")
        devices = {host.name: host.devices for host in self.config.hosts}
        hosts = {
            name: Host(name, address, cluster=self._tree, work=work, devices=devices.get(name, ()))
            for name, address in addresses(self.config).items()
            if name != CONTROLLER
        }
        super().__init__(work, self._tree, hosts)

    def __enter__(self) -> Cluster:
        """The cluster, started."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start everything; returns when all compute hosts are idle."""
        with ThreadPoolExecutor() as pool:
            powered = [pool.submit(host.power_on) for host in self._hosts.values()]
            accounted = self.config.accounting
            database = pool.submit(self._start_database) if accounted else None
            daemons.start_munge(self._services, self.work)
            if database:
                database.result()
                daemons.start_accounting(self._services)
                daemons.add_users(self._services)
            daemons.start_controller(self._services)
            for host in powered:
                host.result()
        self.boot(*self.nodes)

    def _start_database(self) -> None:
        daemons.start_database(self._services, self.work)

    def close(self) -> None:
        """End every process of the cluster and remove its files."""
        self._tree.close()
        for host in self._hosts.values():
            host.close()
        shutil.rmtree(self.work, ignore_errors=True)

    def reset(self) -> None:
        """Bring the cluster back to where a test may begin; quick if it is there already."""
        self.start_accounting()
        self.start_controller()
        self.apply(self._initial)
        self.revive(*self._hosts)
        self.cancel_all()
        self.kill_user_processes()
        self._wait_until_idle(*self.nodes)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the compute hosts."""
        return tuple(host.name for host in self.config.hosts)

    def from_outside(self, path: Path) -> Path:
        """Where a path of the cluster is seen by this process; the small disks are not else."""
        return Path(f"/proc/{self._tree.pid}/root{path}")

    # Settings

    def reconfigure(
        self, *, user_signal: bool | None = None, default_scheduler: bool | None = None
    ) -> None:
        """Change how the controller preempts and schedules; None keeps a setting."""
        config = self.config
        if user_signal is not None:
            config = dataclasses.replace(config, user_signal=user_signal)
        if default_scheduler is not None:
            config = dataclasses.replace(config, default_scheduler=default_scheduler)
        self.apply(config)

    def apply(self, config: ClusterConfig) -> None:
        """Change any settings of the running cluster but its hosts and its version."""
        if config != self.config:
            self.config = config
            write_slurm_conf(config, self.work)
            self._read_configuration()

    def _read_configuration(self) -> None:
        """Let all daemons read slurm.conf, which also makes each node register."""
        self.run(["scontrol", "reconfigure"], user="root")

    # Services

    def stop_controller(self) -> None:
        """Stop slurmctld."""
        self._services.stop("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld, unless it runs; it knows the hosts at once, not seconds later."""
        if not self._services.running("slurmctld"):
            daemons.start_controller(self._services)
            self._read_configuration()

    def restart_controller(self) -> None:
        """Stop slurmctld and start it with the state that it saved."""
        self.stop_controller()
        self.start_controller()

    def stop_accounting(self) -> None:
        """Stop slurmdbd."""
        self._services.stop("slurmdbd")

    def start_accounting(self) -> None:
        """Start slurmdbd, unless it runs or the cluster has none."""
        if self.config.accounting:
            daemons.start_accounting(self._services)

    # Faults

    def has_power(self, name: str) -> bool:
        """Whether a host is switched on."""
        return self._hosts[name].up

    def kill_host(self, name: str) -> None:
        """Kill all processes of a host at once; connections to it are closed loudly."""
        self._hosts[name].kill_processes()

    def kill_slurmd(self, name: str) -> None:
        """Kill the compute daemon of a host; the jobs there run on."""
        self._hosts[name].kill_slurmd()

    def power_off(self, name: str) -> None:
        """Switch a host off; nobody is told."""
        self._hosts[name].power_off()

    def cut_cable(self, name: str) -> None:
        """Take a host off the network; its processes run on."""
        self._hosts[name].cut_cable()

    def plug_cable(self, name: str) -> None:
        """Put a host back on the network."""
        self._hosts[name].plug_cable()

    def throttle(self, name: str, rate: str) -> None:
        """Let a host's cable carry ``rate`` and no more, such as "20mbit"; `reset` ends it."""
        self._hosts[name].throttle(rate)

    def boot(self, *names: str, timeout: float = 120) -> None:
        """Bring hosts back from whatever state; returns when Slurm takes them for idle."""
        self.revive(*names)
        self._wait_until_idle(*names, timeout=timeout)

    def revive(self, *names: str) -> None:
        """Bring hosts back as `boot` does; Slurm learns of it when their daemons register."""
        for name in names:
            self._hosts[name].power_on()
            self._hosts[name].plug_cable()
            self._hosts[name].unthrottle()
            if name in self.nodes:
                self._hosts[name].start_slurmd()

    def _wait_until_idle(self, *names: str, timeout: float = 120) -> None:
        self.wait_for(lambda: self._idle(*names), timeout, f"idle: {', '.join(names)}")

    def _idle(self, *names: str) -> bool:
        states = self.node_states()
        return all(states.get(name) == "idle" for name in names)


def _setup(config: ClusterConfig, work: Path) -> list[str]:
    """Shell lines that turn a fresh process tree into the controller's host."""
    state, root = work / "state", config.version.root
    return [
        f"hostname {CONTROLLER}",
        *switch_setup(addresses(config)[CONTROLLER]),
        *open_closed_directories([*needed_paths(), work]),
        "mount -t tmpfs -o mode=755 tmpfs /run",
        "mkdir -p /run/munge /run/mysqld /run/lock",
        # Nothing of Slurm's own is on the disk: the tmpfs ends with the namespace.
        f"mount -t tmpfs -o mode=755 tmpfs {quoted(state)}",
        f"mkdir -m 700 {quoted(state)}/slurmctld",
        f"for i in {{0..31}}; do mknod -m 666 {quoted(state)}/nvidia$i c 1 3; done",
        *(line for i in range(config.small_disks) for line in _disk(small_disk(work, i))),
        *(fill_root(root, [*SHOWN_IN_ROOT, work, *needed_paths()]) if root != MACHINE else []),
        *(bind(work / "etc" / name, root / "etc" / name) for name in ETC_FILES),
        bind(work / "slurm", root / "etc" / "slurm"),
    ]


def _disk(place: Path) -> list[str]:
    """Shell lines that mount a small file system, which every host then sees."""
    options = f"size={SMALL_DISK_MIB}m,mode=1777"
    return [f"mkdir {quoted(place)}", f"mount -t tmpfs -o {options} tmpfs {quoted(place)}"]
