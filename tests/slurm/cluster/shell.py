"""Commands as an ordinary user on a host of the cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .config import CONTROLLER, LOGIN, ROOT, SYSTEM_PATH, USERS, User
from .host import Host
from .mounts import REPOSITORY
from .namespace import KILL_ALL, Namespace
from .workdir import home


class Shell:
    """Runs commands inside; by default as alice, on the login node, in her home.

    Attributes:
        work: The cluster's folder; the same path on every host and outside.
        shared: The shared file system, below it.
        python: The interpreter to run the project with, inside as outside.
        repository: The project's checkout, which every user may read.
    """

    def __init__(self, work: Path, controller: Namespace, hosts: Mapping[str, Host]) -> None:
        self.work = work
        self.shared = work / "shared"
        self.python = sys.executable
        self.repository = REPOSITORY
        self._controller = controller
        self._hosts = hosts

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
        """Run a command and wait; `env` adds to the environment of a fresh login."""
        return subprocess.run(
            self._as_user(argv, user=user, host=host, cwd=cwd),
            env=self.environment(user) | dict(env or {}),
            input=input or "",
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
        """Start a command; ending the process in any way kills the command (SIGKILL)."""
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
        return {
            "PATH": f"{Path(self.python).parent}:{SYSTEM_PATH}",
            "HOME": str(self.home(user)),
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
        }

    def kill_user_processes(self) -> None:
        """Kill what the test users left running, in or out of a job, on all hosts that are up."""
        for name in [name for name, host in self._hosts.items() if host.up]:
            for user in USERS:
                self.run(KILL_ALL, user=user.name, host=name, check=False)

    def _as_user(self, argv: Sequence[str], *, user: str, host: str, cwd: Path | None) -> list[str]:
        place = self._controller if host == CONTROLLER else self._hosts[host].namespace
        return [*place.enter(_user(user)), "env", f"--chdir={cwd or self.home(user)}", *argv]


def _user(name: str) -> User:
    for user in (*USERS, ROOT):
        if user.name == name:
            return user
    raise ValueError(f"no user {name}; there are {', '.join(user.name for user in USERS)}, root")
