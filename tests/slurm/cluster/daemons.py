"""The controller's services: munge, the accounting database and its daemon, the controller."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .config import DATABASE, SOCKET, USERS, User
from .namespace import Namespace

POLL_S = 0.1


class DaemonError(RuntimeError):
    """A daemon did not come up or did not stop; the text holds the end of its log."""


class Services:
    """Daemons of one host, started and stopped by name."""

    def __init__(self, host: Namespace, log_folder: Path) -> None:
        self.host = host
        self._logs = log_folder
        self._pids: dict[str, int] = {}

    def running(self, name: str) -> bool:
        """Whether the daemon was started and has not ended since."""
        return name in self._pids and self.host.holds(self._pids[name])

    def start(self, argv: Sequence[str], *, ready: Callable[[], bool], timeout: float = 90) -> None:
        """Start a daemon that stays in the foreground, unless it runs; wait until it is ready."""
        name = argv[0]
        if self.running(name):
            return
        self._pids[name] = self.host.spawn(argv, log=self._logs / f"{name}.out")
        deadline = time.monotonic() + timeout
        while not ready():
            if time.monotonic() > deadline or not self.running(name):
                raise DaemonError(f"{name} is not up:\n{self.last_words(name)}")
            time.sleep(POLL_S)

    def stop(self, name: str, *, timeout: float = 30) -> None:
        """End a daemon in order, so that it saves its state."""
        if not self.running(name):
            return
        self.host.run(["kill", "-TERM", str(self._pids[name])], check=False)
        deadline = time.monotonic() + timeout
        while self.running(name):
            if time.monotonic() > deadline:
                raise DaemonError(f"{name} does not stop:\n{self.last_words(name)}")
            time.sleep(POLL_S)

    def last_words(self, name: str) -> str:
        """The end of what a daemon logged; one without a log file printed it."""
        log = self._logs / f"{name}.log"
        return tail(log if log.exists() else log.with_suffix(".out"))

    def answers(self, *argv: str) -> bool:
        """Whether a client command succeeds on this host."""
        try:
            return self.host.run(argv, check=False, timeout=10).returncode == 0
        except subprocess.TimeoutExpired:
            return False


def tail(log: Path, lines: int = 30) -> str:
    """The last lines of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def start_munge(services: Services, work: Path) -> None:
    """Start the daemon that signs who somebody is; all hosts share its socket."""
    key = work / "state" / "munge.key"
    services.host.run(["dd", "if=/dev/urandom", f"of={key}", "bs=128", "count=1"])
    services.host.run(["chmod", "600", str(key)])
    services.start(
        [
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--seed-file={work}/state/munge.seed", f"--pid-file={work}/state/munged.pid"),
        ],
        ready=lambda: services.answers("munge", "-n", "-o", "/dev/null"),
    )


def start_database(services: Services, work: Path) -> None:
    """Start an empty MariaDB that nobody but slurmdbd can reach: it has a socket and no port."""
    # A server that starts removes all temporary tables from its folder, those of others too.
    own = f"{work}/state/mariadb-tmp"
    services.host.run(["mkdir", own])
    data = [f"--datadir={work}/state/mariadb", f"--tmpdir={own}", "--user=root"]
    small = ["--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"]
    services.host.run(
        [
            *("mariadb-install-db", "--no-defaults", *data, *small),
            *("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"),
        ]
    )
    services.start(
        [
            *("mariadbd", "--no-defaults", *data, *small, f"--socket={SOCKET}"),
            *("--skip-networking", "--skip-grant-tables", "--innodb-flush-log-at-trx-commit=0"),
            *("--innodb-lock-wait-timeout=900", "--skip-log-bin"),
        ],
        ready=lambda: services.answers("test", "-S", SOCKET),
    )
    # slurmdbd 24.11 fails after creating it by itself with MariaDB 11.8.9 (error 5027, measured).
    create = f"create database {DATABASE}"
    client = ("mariadb", "--no-defaults", f"--socket={SOCKET}")
    services.host.run([*client, f"--execute={create}"])


def start_accounting(services: Services) -> None:
    """Start slurmdbd and wait until it answers."""
    question = ("sacctmgr", "--noheader", "show", "cluster")
    services.start(["slurmdbd", "-D"], ready=lambda: services.answers(*question))


ACCOUNTING_TRIES = 10


def add_users(services: Services, users: Sequence[User] = USERS) -> None:
    """Give the cluster, each account and each user an entry in the accounting."""
    commands = ["add cluster fsdpq"]
    for user in users:
        commands.append(f"add account {user.account} cluster=fsdpq")
        commands.append(f"add user {user.name} account={user.account} cluster=fsdpq")
    for command in commands:
        _accounted(services, command)


def _accounted(services: Services, command: str) -> None:
    """Run a command of sacctmgr; a slurmdbd that has just started may refuse the first ones."""
    for _ in range(ACCOUNTING_TRIES):
        done = services.host.run(["sacctmgr", "--immediate", *command.split()], check=False)
        if done.returncode == 0 or "already exist" in done.stdout + done.stderr:
            return
        time.sleep(1)
    raise DaemonError(f"sacctmgr {command}: {done.stdout}{done.stderr}")


def start_controller(services: Services) -> None:
    """Start slurmctld and wait until it answers."""
    services.start(["slurmctld", "-D"], ready=lambda: services.answers("scontrol", "ping"))
