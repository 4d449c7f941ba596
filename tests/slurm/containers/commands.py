"""Stand-ins for apptainer, shifter and podman-hpc.

They have the options of the real ones, their way with the environment, with signals and with
mounts, and a real mount namespace of an ordinary user.

    commands.py NAME ARGUMENTS...

An image is a text file: `hide PATH` covers a folder of the host with an empty one, and NAME=VALUE
is a variable that the image sets. All else of the host is the image's content. An option that the
real program does not have is refused.

Sources: apptainer-exec(1) and its monitor_linux.go (signals go to the container), podman-run(1)
(--sig-proxy, --env), conmon.c (SIGUSR1 is handled, SIGTERM goes to the container), shifter(1).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Source: linux/sched.h.
NEW_MOUNTS, NEW_USER, NEW_PIDS = 0x00020000, 0x10000000, 0x20000000
PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


@dataclass(frozen=True)
class Image:
    """A folder of the host hides what the image does not have."""

    hidden: tuple[Path, ...]
    environment: Mapping[str, str]


def read_image(name: str) -> Image:
    """Return the image in the file that is called so."""
    try:
        lines = Path(name).read_text().splitlines()
    except OSError as problem:
        sys.exit(f"FATAL: could not open image {name}: {problem}")
    hidden = tuple(Path(line.split(" ", 1)[1]) for line in lines if line.startswith("hide "))
    pairs = (line.partition("=") for line in lines if not line.startswith("hide "))
    return Image(hidden, {key: value for key, equals, value in pairs if equals})


def apptainer(argv: Sequence[str]) -> int:
    """apptainer exec: the host's variables, but where the image sets them; its own library path."""
    parser = argparse.ArgumentParser("apptainer", allow_abbrev=False)
    parser.add_argument("action", choices=["exec"])
    parser.add_argument("--nv", action="store_true")
    parser.add_argument("--bind", "-B", action="append", default=[])
    options = _parse(parser, argv)
    image = read_image(options.image)
    own = {"LD_LIBRARY_PATH": "/.singularity.d/libs", "APPTAINER_CONTAINER": options.image}
    mounts = [mount for value in options.bind for mount in value.split(",")]
    environment = {**os.environ, **image.environment, **own}
    return watch_over(lambda: enter(image, mounts, environment, options.command))


def shifter(argv: Sequence[str]) -> int:
    """shifter: becomes the command; the image is the one that sbatch was asked for."""
    parser = argparse.ArgumentParser("shifter", allow_abbrev=False)
    parser.add_argument("--volume", "-V", action="append", default=[])
    parser.add_argument("--image", default=os.environ.get("SHIFTER_IMAGE"))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    if options.image is None:
        sys.exit("FATAL: no image is specified")
    # The site's own file systems are all there.
    image = Image((), read_image(options.image).environment)
    enter(image, options.volume, {**os.environ, **image.environment}, options.command)
    return 127


def podman_hpc(argv: Sequence[str]) -> int:
    """podman-hpc run: no variable but those that are named; processes of its own, below conmon."""
    parser = argparse.ArgumentParser("podman-hpc", allow_abbrev=False)
    parser.add_argument("action", choices=["run"])
    for flag in ("--rm", "--gpu"):
        parser.add_argument(flag, action="store_true", required=True)
    for place in ("--network", "--ipc"):
        parser.add_argument(place, choices=["host"], required=True)
    parser.add_argument("--entrypoint", choices=[""], required=True)
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--volume", "-v", action="append", default=[])
    options = _parse(parser, argv)
    image = read_image(options.image)
    own = {"PATH": PLAIN_PATH, "HOME": "/root", "container": "podman"}
    environment = {**own, **image.environment, **named(options.env, os.environ)}

    command: list[str] = options.command

    reader, writer = os.pipe()

    def conmon() -> int:
        return watch_over(
            lambda: enter(image, options.volume, environment, command, own_processes=True),
            passed_on=(signal.SIGTERM,),
            ignored=(signal.SIGUSR1,),
            tell=lambda pid: os.write(writer, str(pid).encode()),
        )

    # podman waits for conmon, and sends signals to the container.
    return watch_over(lambda: sys.exit(conmon()), whom=lambda: int(os.read(reader, 20)))


def named(names: Sequence[str], host: Mapping[str, str]) -> dict[str, str]:
    """Return what --env gives: NAME, NAME=VALUE, or the beginning of names with a *."""
    found = {}
    for name in names:
        key, equals, value = name.partition("=")
        if equals:
            found[key] = value
        elif key.endswith("*"):
            found |= {one: host[one] for one in host if one.startswith(key[:-1])}
        elif key in host:
            found[key] = host[key]
    return found


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args(argv)


def watch_over(
    child: Callable[[], object],
    *,
    passed_on: Sequence[signal.Signals] = PASSED_ON,
    ignored: Sequence[signal.Signals] = (),
    tell: Callable[[int], object] = id,
    whom: Callable[[], int] | None = None,
) -> int:
    """Run ``child`` in a process of its own, pass signals on to it, and return its exit code.

    ``tell`` is told its process id; ``whom`` says which other process gets the signals.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        child()
        os._exit(127)
    tell(pid)
    heir = whom() if whom else pid
    for number in ignored:
        signal.signal(number, lambda *_: None)
    for number in passed_on:
        signal.signal(number, lambda got, _: os.kill(heir, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def enter(
    image: Image,
    mounts: Sequence[str],
    environment: Mapping[str, str],
    command: list[str],
    *,
    own_processes: bool = False,
) -> None:
    """Become the command in the container."""
    _become_root()
    held = [(_hold(mount), mount.split(":")) for mount in mounts]
    _mount("--make-rprivate", "/")
    for folder in image.hidden:
        _mount("-t", "tmpfs", "tmpfs", str(folder))
    for source, (_, target, *flags) in held:
        _show(source, Path(target))
        if flags == ["ro"]:
            _mount("-o", "remount,bind,ro", target)
    os.chdir("/")
    if not own_processes:
        os.execvpe(command[0], command, environment)
    _unshare(NEW_PIDS)  # for the next child, which must be the first one in there

    def first() -> None:
        _mount("-t", "proc", "proc", "/proc")
        os.execvpe(command[0], command, environment)

    os._exit(watch_over(first))


def _hold(mount: str) -> int:
    source = mount.split(":")[0]
    try:
        return os.open(source, os.O_PATH)
    except OSError as problem:
        sys.exit(f"FATAL: mount source {source} doesn't exist: {problem}")


def _show(source: int, target: Path) -> None:
    if Path(f"/proc/self/fd/{source}").is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    _mount("--no-canonicalize", "--rbind", f"/proc/self/fd/{source}", str(target), keep=source)


def _mount(*words: str, keep: int | None = None) -> None:
    subprocess.run(["mount", *words], check=True, pass_fds=[] if keep is None else [keep])


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        sys.exit(f"FATAL: unshare: {os.strerror(ctypes.get_errno())}")


def _become_root() -> None:
    user, group = os.getuid(), os.getgid()
    _unshare(NEW_USER | NEW_MOUNTS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def main() -> int:
    """Run the stand-in that is named first."""
    runtimes = {"apptainer": apptainer, "shifter": shifter, "podman-hpc": podman_hpc}
    return runtimes[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
