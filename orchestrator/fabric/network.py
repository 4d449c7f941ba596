"""What NCCL's lines say of the network of one process. Pure.

Formats by version, read from the format strings of NVIDIA/nccl 2.18 to 2.30:

- the network is named by `Using network X` (all) and `Assigned NET plugin X to comm` (2.27 on);
- `NET/IB : Using [0]mlx5_0:1/IB ...; OOB eth0:...` lists the HCAs. Ports that are not active are
  left out without a word, and an empty list is no HCA (2.27 prints one after `No device found`);
- `via NET/IB/8/GDRDMA` is the only proof of GPUDirect RDMA for a connection between nodes. `(PCI)`
  may follow (2.26 on), `(rank)` stands before it where another rank's HCA is used, `/Shared` after;
- `DMA-BUF is available` is a capability, printed also where GPUDirect is not used.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from orchestrator.fabric.lines import Line
from orchestrator.fabric.promise import SOCKET

# More connections of one process than that say nothing new.
_MOST_CHANNELS = 4096
_MOST_NAMES = 64
_NETWORK = re.compile(r"Using network (.{1,64})$")
_ASSIGNED = re.compile(r"(?:Assigned|Initialized) NET plugin (.{1,64}?)(?: to comm.*)?$")
_IB_USING = re.compile(r"NET/\w+ ?: Using(?P<devices>.*?)(?P<end>; OOB |$)")
_DEVICE = re.compile(r"\[\d+\] ?([^\s:\[\]{},=]+:\d+)(?::[-\d]*)*/(IB|RoCE)")
_INTERFACE = re.compile(r"[\w.-]+:([^\s<>\[\]]+)<\d+>")
_CHANNEL = re.compile(
    r"(?:Channel|Ring) (?P<channel>\d+)(?:/\d+)? : (?P<a>\d+)(?:\[\w+\])? -> (?P<b>\d+)(?:\[\w+\])?"
    r" \[(?P<way>send|receive)\] via NET/(?P<net>.+?)/(?P<nic>\d+)(?:\(\d+\))?"
    r"(?P<gdr>/GDRDMA(?:\(\w+\))?)?(?P<end>/Shared)?$"
)
_GDR_HCA = re.compile(r"GPU Direct RDMA (?P<state>Enabled|Disabled) for HCA \d+ '(?P<hca>[^']+)'")
_GDR_GPU = re.compile(r"GPU Direct RDMA (?P<state>Enabled|Disabled) for GPU \S+ / HCA (?P<hca>\S+)")
_PROVIDER = re.compile(
    r"NET/OFI Selected [Pp]rovider is (?P<name>\w+)(?:.*found (?P<nics>\d+) nics)?"
)
_ENV = re.compile(r"(NCCL_\w+) set (?:by environment )?to (.{0,200}?)\.?$")
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_COMM = re.compile(r"\brank (?P<rank>\d+) n[Rr]anks (?P<ranks>\d+)(?: nNodes (?P<nodes>\d+))?")


class Told(NamedTuple):
    """A line that something was learnt from; ``file`` is "" and ``number`` 0 where not known."""

    text: str = ""
    file: str = ""
    number: int = 0


@dataclass(slots=True)
class Process:
    """What is known of one process so far; `add` takes its lines one after the other.

    Attributes:
        lines: How many lines it was heard of in.
        clean: How many of them it began.
        hcas: Link layer ("IB", "RoCE") by HCA and port; None where nothing was said of HCAs.
        nics: How many interfaces libfabric found.
        gdr, plain: Connections to other nodes with and without GPUDirect.
        gdr_hcas: "Enabled" or "Disabled" by HCA: whether it could be used at all.
        gdr_pairs: The same by GPU and HCA, as used (TRACE, or INFO in old versions).
        env: NCCL's variables, as it says that it took them.
        nodes: Nodes of its largest communicator; None where it did not say.
        told: The line that something was learnt from, by its name.
        addresses: Of its host's interfaces.
        place: File and number of the line that is being taken.
    """

    host: str
    pid: int
    source: str = ""
    lines: int = 0
    clean: int = 0
    rank: int | None = None
    ranks: int = 0
    nodes: int | None = None
    version: str = ""
    provider: str = ""
    nics: int | None = None
    hcas: dict[str, str] | None = None
    networks: Counter[str] = field(default_factory=Counter)
    initialized: set[str] = field(default_factory=set)
    gdr: set[tuple[str, ...]] = field(default_factory=set)
    plain: set[tuple[str, ...]] = field(default_factory=set)
    gdr_hcas: dict[str, str] = field(default_factory=dict)
    gdr_pairs: set[str] = field(default_factory=set)
    env: dict[str, str] = field(default_factory=dict)
    told: dict[str, Told] = field(default_factory=dict)
    addresses: set[str] = field(default_factory=set)
    place: tuple[str, int] = ("", 0)

    def add(self, line: Line, *, file: str = "", number: int = 0) -> None:
        """Take one line of NCCL's."""
        self.place = (file, number)
        self.lines += 1
        self.clean += line.first
        if self.rank is None:
            self.rank = line.rank
        message = line.message
        if message.startswith(("Channel ", "Ring ")):
            self._channel(line)
        elif message.startswith("NET/OFI"):
            self._provider(line)
        elif message.startswith("NET/"):
            self._net(line)
        elif message.startswith("Bootstrap"):
            self._interfaces(message)
        elif message.startswith("NCCL"):
            self._variable(line)
        elif "GPU Direct RDMA" in message:
            self._gdr(line)
        elif " rank " in message:
            self._comm(message)
        else:
            self._network(line)

    def _network(self, line: Line) -> None:
        if match := _NETWORK.match(line.message):
            self._named(match[1].strip(), line)
        elif match := _ASSIGNED.match(line.message):
            if line.message.startswith("Assigned"):
                if " to comm" in line.message:
                    self._named(match[1].strip(), line)
            elif len(self.initialized) < _MOST_NAMES and line.whole:
                self.initialized.add(match[1].strip())

    def _named(self, network: str, line: Line) -> None:
        if not network or (not line.whole and not known(network)):
            return
        if network in self.networks or len(self.networks) < _MOST_NAMES:
            self.networks[network] += 1
            self._tell(f"network {network}", line)

    def _tell(self, name: str, line: Line) -> None:
        if len(self.told) < _MOST_NAMES:
            self.told.setdefault(name, Told(line.text[:400], *self.place))

    def _interfaces(self, message: str) -> None:
        if len(self.addresses) < _MOST_NAMES:
            self.addresses.update(_INTERFACE.findall(message)[:_MOST_NAMES])

    def _net(self, line: Line) -> None:
        message = line.message
        if " : Using" in message[:20]:
            self._interfaces(message)
        if "GPU Direct RDMA" in message:
            self._gdr(line)
        elif "Plugin" in message[:12]:
            if "ould not find" in message or "No plugin found" in message:
                self._tell("plugin", line)
        elif message.startswith("NET/Socket"):
            if " : Using" in message[:20]:
                self._tell("sockets", line)
        elif "No device found" in message:
            self.hcas = self.hcas or {}
            self._tell("no device", line)
        elif match := _IB_USING.match(message):
            self._devices(match["devices"], line, ended=bool(match["end"]))

    def _devices(self, text: str, line: Line, *, ended: bool) -> None:
        """Take a list of HCAs; one without its end counts only as far as it adds some."""
        found = dict(_DEVICE.findall(text)[:_MOST_NAMES])
        if not ended and not found:
            return
        self.hcas = {**(self.hcas or {}), **found}
        self._tell("hcas", line)

    def _channel(self, line: Line) -> None:
        match = _CHANNEL.match(line.message)
        if match is None:
            return
        # What another line broke into may have lost the word that counts.
        if not line.whole and not match["gdr"]:
            return
        which = self.gdr if match["gdr"] else self.plain
        if len(which) < _MOST_CHANNELS:
            which.add((match["net"], match["channel"], match["a"], match["b"], match["way"]))
        if not match["gdr"]:
            self._tell("plain", line)

    def _gdr(self, line: Line) -> None:
        if match := _GDR_HCA.search(line.message):
            if len(self.gdr_hcas) < _MOST_NAMES:
                self.gdr_hcas[match["hca"]] = match["state"]
            self._tell(f"gdr {match['state']}", line)
        elif match := _GDR_GPU.search(line.message):
            self.gdr_pairs.add(match["state"])
            self._tell(f"pair {match['state']}", line)

    def _provider(self, line: Line) -> None:
        if match := _PROVIDER.match(line.message):
            self.provider = match["name"]
            self._tell("provider", line)
            if match["nics"]:
                self.nics = int(match["nics"])

    def _variable(self, line: Line) -> None:
        if match := _VERSION.match(line.message):
            self.version = match[1]
        elif (match := _ENV.match(line.message)) and len(self.env) < _MOST_NAMES:
            self.env[match[1]] = match[2].strip()
            self._tell(match[1], line)

    def _comm(self, message: str) -> None:
        """Take this process's rank in its largest communicator, the first of that size."""
        match = _COMM.search(message)
        if match is None:
            return
        if (ranks := int(match["ranks"])) > self.ranks:
            self.ranks, self.rank = ranks, int(match["rank"])
        if match["nodes"] and ranks >= self.ranks:
            self.nodes = int(match["nodes"])

    def absorb(self, other: "Process") -> None:
        """Take what was said of the same process under another name."""
        self.lines += other.lines
        self.clean += other.clean
        self.rank = self.rank if self.rank is not None else other.rank
        self.ranks, self.nodes = max(self.ranks, other.ranks), self.nodes or other.nodes
        self.version, self.provider = self.version or other.version, self.provider or other.provider
        self.nics = self.nics if self.nics is not None else other.nics
        if other.hcas is not None:
            self.hcas = {**other.hcas, **(self.hcas or {})}
        self.networks += other.networks
        self.initialized |= other.initialized
        self.gdr |= other.gdr
        self.plain |= other.plain
        self.addresses |= other.addresses
        self.gdr_pairs |= other.gdr_pairs
        for name in ("gdr_hcas", "env", "told"):
            setattr(self, name, {**getattr(other, name), **getattr(self, name)})

    # --- what follows -----------------------------------------------------------------------

    @property
    def network(self) -> str:
        """The network that it uses, by the worst that it said; "" where it said nothing."""
        names = [*self.networks, *sorted({channel[0] for channel in self.gdr | self.plain})]
        if SOCKET in names:
            return SOCKET
        if names:
            return _full(names)
        if "sockets" in self.told and not self.hcas:
            return SOCKET
        if self.initialized:
            return _full(sorted(self.initialized))
        return "IB" if self.hcas else ""

    @property
    def channels(self) -> tuple[int, int]:
        """Connections to other nodes with GPUDirect, and all; one seen both ways has it."""
        return len(self.gdr), len(self.gdr | self.plain)

    @property
    def has_gdr(self) -> bool | None:
        """Whether GPUDirect is used on all its connections to other nodes; None if unproven."""
        if self.network == SOCKET:
            return False
        with_it, all_of_them = self.channels
        if all_of_them:
            return with_it == all_of_them
        if self.gdr_pairs:
            return "Disabled" not in self.gdr_pairs
        # That it is enabled for an HCA is no proof that it is used.
        return False if "Disabled" in self.gdr_hcas.values() else None


_KNOWN = re.compile(
    r"IB(?:ext(?:_v\d+)?)?|Socket|(?:AWS )?Libfabric|OFI|gIB|GPUDirectTCPXO?(?:_v\d+)?|FasTrak"
    r"|UCX"
)


@lru_cache(maxsize=256)
def known(network: str) -> bool:
    """Return whether this is the whole name of a network, and not the beginning of one."""
    return _KNOWN.fullmatch(network) is not None


def _full(names: list[str]) -> str:
    """Return the network among ``names``, some of which may be the beginnings of others."""
    best = [name for name in names if known(name)] or names
    return max(best, key=len) if not known(best[0]) else best[0]
