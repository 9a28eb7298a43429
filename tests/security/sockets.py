"""At which addresses a tree of processes listens, as /proc says; standard library only, to run anywhere."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path


def descendants(root: int) -> list[int]:
    """The process and all that it started."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    pids, pending = [root], [root]
    while pending:
        below = children.get(pending.pop(), [])
        pids += below
        pending += below
    return pids


def listening(root: int | None = None) -> set[tuple[str, int]]:
    """Address and port of each socket on which this process and its descendants listen, or receive by UDP."""
    inodes = set()
    for pid in descendants(root or os.getpid()):
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(str(link.readlink()))
            except OSError:
                continue
    return {
        end
        for table, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07"))
        for end in _ends(table, state, inodes)
    }


def _ends(table: str, state: str, inodes: set[str]) -> list[tuple[str, int]]:
    rows = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    mine = [row[1] for row in rows if row[3] == state and f"socket:[{row[9]}]" in inodes]
    return [(_address(text.partition(":")[0]), int(text.partition(":")[2], 16)) for text in mine]


def _address(words: str) -> str:
    """The table writes each word of an address in the machine's byte order."""
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "::ffff:127.0.0.1")
