"""One host of the cluster: a namespace of its own with a cable to the switch."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from .config import SYSTEM_ENVIRONMENT
from .mounts import cover, needed_paths, only_devices
from .namespace import KILL_ALL, Namespace, open_namespace

BRIDGE = "switch"
# As the first process of a namespace, bash survives `kill -9 -1` in it and only starts over.
STAY = "while true; do sleep infinity || true; done"


class Host:
    """A host that can lose its processes, its cable or its power, and come back."""

    def __init__(
        self,
        name: str,
        address: str,
        *,
        cluster: Namespace,
        work: Path,
        devices: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._devices = devices
        self._address = address
        self._cluster = cluster
        self._work = work
        self._namespace: Namespace | None = None
        self._slurmd = 0
        self._throttled = False

    @property
    def up(self) -> bool:
        """Whether the host has power; it may have no processes or no cable."""
        return self._namespace is not None and self._namespace.alive

    @property
    def namespace(self) -> Namespace:
        """The host's process tree."""
        if not self._namespace:
            raise RuntimeError(f"host {self.name} was never started")
        return self._namespace

    def power_on(self) -> None:
        """Start the host, without Slurm."""
        if not self.up:
            self.close()
            self._namespace = open_namespace(self._setup(), inside=self._cluster, stay=STAY)
            self._slurmd = 0
            self._lay_cable(self._namespace)

    def power_off(self) -> None:
        """Switch the host off: peers are told nothing, for the cable is cut first."""
        self.cut_cable()
        self.namespace.kill()

    def close(self) -> None:
        """Forget a host that has ended."""
        if self._namespace:
            self._namespace.close()

    def kill_processes(self) -> None:
        """Kill all that runs on the host; its kernel still answers, and closes connections."""
        self.namespace.run(KILL_ALL, check=False)

    def cut_cable(self) -> None:
        """Take the host off the network."""
        self._ip(["link", "set", self._cable, "down"])

    def plug_cable(self) -> None:
        """Put the host back on the network."""
        self._ip(["link", "set", self._cable, "up"])

    def throttle(self, rate: str) -> None:
        """Let the cable carry ``rate`` and no more, such as "20mbit", in both directions."""
        for of, device in ((self._cluster, self._cable), (self.namespace, "eth0")):
            shape = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms"]
            self._run(["tc", "qdisc", "replace", "dev", device, *shape], of=of)
        self._throttled = True

    def unthrottle(self) -> None:
        """Let the cable carry what it can."""
        if self._throttled:
            for of, device in ((self._cluster, self._cable), (self.namespace, "eth0")):
                self._run(["tc", "qdisc", "delete", "dev", device, "root"], of=of, check=False)
        self._throttled = False

    def start_slurmd(self) -> None:
        """Start the compute daemon, unless it runs; it registers with the controller."""
        if self.up and self._slurmd and self.namespace.holds(self._slurmd):
            return
        log = self._work / "log" / f"slurmd.{self.name}.out"
        self._slurmd = self.namespace.spawn(["slurmd", "-D", "-N", self.name], log=log)

    def kill_slurmd(self) -> None:
        """Kill the compute daemon alone; what it has started runs on."""
        self.namespace.run(["kill", "-KILL", str(self._slurmd)], check=False)

    @property
    def _cable(self) -> str:
        return f"to-{self.name}"

    def _setup(self) -> list[str]:
        keep = [self._work, *needed_paths()]
        return [
            f"hostname {self.name}",
            *cover(Path("/tmp"), keep=keep, mode="1777"),
            *(only_devices(self._devices) if self._devices else []),
            "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
        ]

    def _lay_cable(self, namespace: Namespace) -> None:
        """Connect the host to the switch.

        The hardware address is fixed: peers remember it over a power cycle.
        """
        number = int(self._address.rsplit(".", 1)[1])
        hardware = f"02:00:00:00:00:{number:02x}"
        self._ip(["link", "delete", self._cable], check=False)  # left from before a power-off
        end = ["name", "eth0", "address", hardware, "netns", str(namespace.pid)]
        self._ip(["link", "add", self._cable, "type", "veth", "peer", *end])
        self._ip(["link", "set", self._cable, "master", BRIDGE, "up"])
        self._ip(["link", "set", "lo", "up"], of=namespace)
        self._ip(["address", "add", f"{self._address}/24", "dev", "eth0"], of=namespace)
        self._ip(["link", "set", "eth0", "up"], of=namespace)

    def _ip(self, words: Sequence[str], *, of: Namespace | None = None, check: bool = True) -> None:
        """Run ip on a network, by default the switch's."""
        self._run(["ip", *words], of=of or self._cluster, check=check)

    def _run(self, words: Sequence[str], *, of: Namespace, check: bool = True) -> None:
        """Run a command on a network.

        Only the network is entered, for `netns PID` counts processes as this process does.
        """
        subprocess.run(
            ["nsenter", f"--target={of.pid}", "--net", *words],
            env=SYSTEM_ENVIRONMENT,
            check=check,
            timeout=30,
            capture_output=True,
        )


def switch_setup(address: str) -> list[str]:
    """Shell lines that make the switch, with the controller's host plugged in."""
    return [
        "ip link set lo up",
        f"ip link add {BRIDGE} type bridge",
        f"ip address add {address}/24 dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
    ]
