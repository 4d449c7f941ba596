"""Two network namespaces and a cable between them, without iproute2, which GPU machines may lack.

    python tests/gpu/veth.py NAME ADDRESS      inside a namespace: bring its end and `lo` up

Source: rtnetlink(7), netlink(7), linux/if_link.h, linux/veth.h.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

RTM_NEWLINK, RTM_NEWADDR = 16, 20
REQUEST_ACK, CREATE_EXCL = 0x5, 0x600
IFLA_IFNAME, IFLA_LINKINFO, IFLA_NET_NS_PID = 3, 18, 19
INFO_KIND, INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFA_ADDRESS, IFA_LOCAL, IFF_UP = 1, 2, 1


def attribute(kind: int, data: bytes) -> bytes:
    """Return one attribute of a message, padded to four bytes."""
    padding = b"\0" * (-len(data) % 4)
    return struct.pack("=HH", 4 + len(data), kind) + data + padding


def request(kind: int, flags: int, body: bytes) -> None:
    """Ask the kernel and wait for its answer.

    Raises:
        OSError: It refused.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(body), kind, REQUEST_ACK | flags, 1, 0) + body)
        (code,) = struct.unpack_from("=i", kernel.recv(65536), 16)
        if code:
            raise OSError(-code, os.strerror(-code))


def link(index: int = 0, *, up: bool = False) -> bytes:
    """Return the head of a message on a network interface."""
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, int(up), IFF_UP if up else 0)


def lay_cable(name: str, first: int, second: int) -> None:
    """Make a pair of interfaces, both called ``name``, in the namespaces of two processes."""

    def end(process: int) -> bytes:
        where = attribute(IFLA_NET_NS_PID, struct.pack("=I", process))
        return attribute(IFLA_IFNAME, name.encode() + b"\0") + where

    peer = attribute(VETH_INFO_PEER, link() + end(second))
    info = attribute(INFO_KIND, b"veth") + attribute(INFO_DATA, peer)
    request(RTM_NEWLINK, CREATE_EXCL, link() + end(first) + attribute(IFLA_LINKINFO, info))


def bring_up(name: str, address: str) -> None:
    """Give the interface ``name`` of this namespace an address and switch it on."""
    index, number = socket.if_nametoindex(name), socket.inet_aton(address)
    head = struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, index)
    body = head + attribute(IFA_LOCAL, number) + attribute(IFA_ADDRESS, number)
    request(RTM_NEWADDR, CREATE_EXCL, body)
    for interface in (name, "lo"):
        request(RTM_NEWLINK, 0, link(socket.if_nametoindex(interface), up=True))


@contextmanager
def two_hosts(name: str, addresses: tuple[str, str]) -> Iterator[list[list[str]]]:
    """Open two hosts with an own network and name; yield the words that run a command in each."""
    with ExitStack() as stack:
        pids = [stack.enter_context(_host(f"host{number}")) for number in (1, 2)]
        lay_cable(name, *pids)
        hosts = [["nsenter", f"--target={pid}", "--net", "--uts"] for pid in pids]
        for host, address in zip(hosts, addresses, strict=True):
            subprocess.run([*host, sys.executable, Path(__file__), name, address], check=True)
        yield hosts


@contextmanager
def _host(name: str) -> Iterator[int]:
    """Keep a namespace open by a process that waits for the end of its input."""
    script = 'hostname "$0" && echo ready && read -r _'
    argv = ["unshare", "--net", "--uts", "bash", "-c", script, name]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout
        if shell.stdout.readline().strip() != "ready":
            raise RuntimeError("no namespace here: this needs root, unshare and hostname")
        yield shell.pid
        shell.communicate("")


if __name__ == "__main__":
    bring_up(sys.argv[1], sys.argv[2])
