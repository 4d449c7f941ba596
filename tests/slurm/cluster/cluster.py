"""A real Slurm cluster on this machine: hosts, users, accounting and faults."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from . import daemons
from .config import CONTROLLER, LOGIN, ROOT, USERS, ClusterConfig, User, addresses
from .host import Host, switch_setup
from .mounts import bind, needed_paths, open_closed_directories, quoted
from .namespace import Namespace, open_namespace
from .workdir import home, make_work_folder, write_slurm_conf

POLL_S = 0.2
# Removes the folder once the namespace is gone, however this process ended.
GUARD = ("sh", "-c", 'work=$1; shift; "$@"; rm -rf -- "$work"', "guard")
# Where a field of `scontrol show job -o` begins, such as ` JobState=` or ` Socks/Node=`.
FIELD = re.compile(r"(?:^| )([A-Z][A-Za-z:/]*)=")


class Cluster:
    """The cluster's hosts and services, and all that a test does to them.

    Attributes:
        config: The present configuration.
        shared: The shared file system: same path on every host and outside.
        python: The interpreter to run the project with.
    """

    def __init__(self, config: ClusterConfig | None = None) -> None:
        self._initial = config or ClusterConfig()
        self.config = self._initial
        self.python = sys.executable
        self.work = make_work_folder(self.config)
        self.shared = self.work / "shared"
        self._tree = self._open_tree()
        self._services = daemons.Services(self._tree, self.work / "log")
        self._hosts = {
            name: Host(name, address, cluster=self._tree, work=self.work)
            for name, address in addresses(self.config).items()
            if name != CONTROLLER
        }

    def __enter__(self) -> Cluster:
        """The cluster, started."""
        self.start()
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
            database = pool.submit(daemons.start_database, self._services, self.work)
            daemons.start_munge(self._services, self.work)
            database.result()
            daemons.start_accounting(self._services)
            daemons.add_users(self._services)
            daemons.start_controller(self._services)
            for host in powered:
                host.result()
        self.boot(*self.nodes)

    def close(self) -> None:
        """End every process of the cluster and remove its files."""
        self._tree.close()
        for host in self._hosts.values():
            host.close()
        shutil.rmtree(self.work, ignore_errors=True)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the compute hosts."""
        return tuple(host.name for host in self.config.hosts)

    def _open_tree(self) -> Namespace:
        work, etc = self.work, self.work / "etc"
        binds = [bind(etc / name, Path("/etc") / name) for name in ("passwd", "group", "hosts")]
        setup = [
            f"hostname {CONTROLLER}",
            *open_closed_directories([*needed_paths(), work]),
            "mount -t tmpfs -o mode=755 tmpfs /run",
            "mkdir -p /run/munge /run/mysqld /run/lock",
            # Nothing of Slurm's own is on the disk: the tmpfs ends with the namespace.
            f"mount -t tmpfs -o mode=755 tmpfs {quoted(work / 'state')}",
            f"mkdir -m 700 {quoted(work / 'state')}/slurmctld",
            f"for i in 0 1 2 3 4 5 6 7; do mknod -m 666 {quoted(work)}/state/nvidia$i c 1 3; done",
            *binds,
            bind(work / "slurm", Path("/etc/slurm")),
            *switch_setup(addresses(self.config)[CONTROLLER]),
        ]
        return open_namespace(setup, stay="read -r _ || true", guard=[*GUARD, str(work)])

    # Commands

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str = "alice",
        host: str = LOGIN,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,
        timeout: float = 60,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user on a host, by default the login node, in the user's home."""
        return subprocess.run(
            self._as_user(argv, user=user, host=host, cwd=cwd),
            env=self.environment(user) | dict(env or {}),
            input=input,
            timeout=timeout,
            check=check,
            capture_output=True,
            text=True,
        )

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str = "alice",
        host: str = LOGIN,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a command like `run` does; killing the process kills the command."""
        return subprocess.Popen(
            self._as_user(argv, user=user, host=host, cwd=cwd),
            env=self.environment(user) | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def home(self, user: str = "alice") -> Path:
        """The home directory of a user, on the shared file system."""
        return Path("/root") if user == ROOT.name else home(self.work, user)

    def environment(self, user: str = "alice") -> dict[str, str]:
        """The environment of a fresh login; the project's interpreter comes first in PATH."""
        folders = [str(Path(self.python).parent), "/usr/local/bin", "/usr/bin", "/bin"]
        return {
            "PATH": ":".join([*folders, "/usr/local/sbin", "/usr/sbin", "/sbin"]),
            "HOME": str(self.home(user)),
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
        }

    def _as_user(self, argv: Sequence[str], *, user: str, host: str, cwd: Path | None) -> list[str]:
        tree = self._tree if host == CONTROLLER else self._hosts[host].namespace
        folder = f"--chdir={cwd or self.home(user)}"
        return [*tree.enter(_user(user)), "env", folder, *argv]

    def sbatch(self, options: Sequence[str], script: str, *, user: str = "alice") -> int:
        """Submit a script given as text; returns the job id."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        done = self.run(["sbatch", "--parsable", *options], user=user, input=text)
        return int(done.stdout.strip().split(";")[0])

    def submit_prod(self, *, nodes: int = 2, seconds: int = 5, user: str = "bob") -> int:
        """Submit an urgent job that takes whole hosts, and so preempts what runs on them."""
        options = ["--partition=prod", f"--nodes={nodes}", "--exclusive", "--job-name=urgent"]
        return self.sbatch([*options, "--output=/dev/null"], f"sleep {seconds}", user=user)

    def job(self, job_id: int) -> dict[str, str]:
        """The fields of `scontrol show job`; empty once the controller has forgotten the job.

        A value that holds a blank and then the look of a field is cut there.
        """
        done = self.run(["scontrol", "show", "job", "-o", str(job_id)], user="root", check=False)
        if done.returncode != 0:
            return {}
        parts = FIELD.split(done.stdout.strip())
        return dict(zip(parts[1::2], parts[2::2], strict=True))

    def state(self, job_id: int) -> str:
        """The job's state, such as RUNNING; empty once the controller has forgotten it."""
        return self.job(job_id).get("JobState", "")

    def node_states(self) -> dict[str, str]:
        """Host name to state as sinfo prints it, such as `idle` or `down*`."""
        done = self.run(["sinfo", "--noheader", "--Node", "--format=%N %T"], user="root")
        return dict(line.split() for line in done.stdout.splitlines())

    def wait_for(self, predicate: Callable[[], object], timeout: float, what: str) -> None:
        """Return once the predicate holds.

        Raises:
            TimeoutError: With the queue, the hosts and the end of the controller's log.
        """
        deadline = time.monotonic() + timeout
        while not predicate():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {timeout:g} s: {what}\n{self.situation()}")
            time.sleep(POLL_S)

    def wait_for_state(self, job_id: int, *states: str, timeout: float = 30) -> None:
        """Return once the job is in one of the states."""
        what = f"job {job_id} is {' or '.join(states)}"
        self.wait_for(lambda: self.state(job_id) in states, timeout, what)

    def situation(self) -> str:
        """What a person would look at first when something hangs."""
        shown = [
            self.run(argv, user="root", check=False, timeout=20).stdout
            for argv in (["squeue", "--all"], ["sinfo", "--all", "--Node", "--long"])
        ]
        return "\n".join([*shown, self._services.last_words("slurmctld")])

    # Faults

    def kill_host(self, name: str) -> None:
        """Kill all processes of a host at once; connections to it are closed loudly."""
        self._hosts[name].kill_processes()

    def power_off(self, name: str) -> None:
        """Switch a host off; nobody is told."""
        self._hosts[name].power_off()

    def cut_cable(self, name: str) -> None:
        """Take a host off the network; its processes run on."""
        self._hosts[name].cut_cable()

    def plug_cable(self, name: str) -> None:
        """Put a host back on the network."""
        self._hosts[name].plug_cable()

    def boot(self, *names: str, timeout: float = 60) -> None:
        """Bring hosts back from whatever state; returns when Slurm takes them for idle."""
        for host in [self._hosts[name] for name in names]:
            host.power_on()
            host.plug_cable()
            if not host.slurmd_runs():
                host.start_slurmd()
        idle = lambda: all(self.node_states()[name] == "idle" for name in names)  # noqa: E731
        self.wait_for(idle, timeout, f"idle: {', '.join(names)}")

    def stop_controller(self) -> None:
        """Stop slurmctld."""
        self._services.stop("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld."""
        daemons.start_controller(self._services)

    def restart_controller(self) -> None:
        """Stop slurmctld and start it with the state that it saved."""
        self.stop_controller()
        self.start_controller()

    def stop_accounting(self) -> None:
        """Stop slurmdbd."""
        self._services.stop("slurmdbd")

    def start_accounting(self) -> None:
        """Start slurmdbd."""
        daemons.start_accounting(self._services)

    def reconfigure(
        self,
        *,
        user_signal: bool | None = None,
        default_scheduler: bool | None = None,
        min_job_age_s: int | None = None,
    ) -> None:
        """Change settings of the running cluster; None keeps one."""
        self._apply(
            self.config.changed(
                user_signal=user_signal,
                default_scheduler=default_scheduler,
                min_job_age_s=min_job_age_s,
            )
        )

    def _apply(self, config: ClusterConfig) -> None:
        if config != self.config:
            self.config = config
            write_slurm_conf(config, self.work)
            self.restart_controller()

    def reset(self) -> None:
        """Bring the cluster back to where a test may begin; quick if it is there already."""
        self.start_accounting()
        self.start_controller()
        self._apply(self._initial)
        self.cancel_all()
        self.boot(*self.nodes)

    def cancel_all(self) -> None:
        """End all jobs at once and wait until they are gone."""
        squeue = ["squeue", "--all", "--noheader", "--format=%A"]
        while jobs := self.run(squeue, user="root").stdout.split():
            # The signal goes ahead, for a cancel alone lets a job linger for KillWait.
            self.run(["scancel", "--full", "--signal=KILL", *jobs], user="root", check=False)
            self.run(["scancel", *jobs], user="root", check=False)
            time.sleep(POLL_S)


def _user(name: str) -> User:
    for user in (*USERS, ROOT):
        if user.name == name:
            return user
    raise ValueError(f"no user {name}; there are {', '.join(user.name for user in USERS)}, root")
