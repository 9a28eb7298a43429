"""Which user of this machine is at the other end of a loopback connection.

The kernel knows the owner of the client's socket, as it does for a Unix socket. It is asked through netlink
(sock_diag), or else through /proc/net/tcp. A socket that its process has closed belongs to nobody: its owner
cannot be told any more, and is None. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST, _ANY_COOKIE = 4, 20, 1, b"\xff" * 8
_TIMEOUT_S = 1.0
_MAX_TABLE_BYTES = 8 << 20
Address = tuple[str, int]


def is_own(client: Sequence[Any] | None, server: Sequence[Any] | None) -> bool:
    """Whether a connection between these socket addresses is held by this process's user, or by root."""
    if not client or not server:
        return False
    return owner_of((client[0], client[1]), (server[0], server[1])) in (0, os.geteuid())


def are_told_apart(listening: socket.socket) -> bool:
    """Whether this system tells whose a connection to the socket is; tried with one of our own."""
    try:
        with socket.create_connection(listening.getsockname()[:2], timeout=_TIMEOUT_S) as client:
            return is_own(client.getsockname(), client.getpeername())
    except OSError:
        return False


def owner_of(client: Address, server: Address) -> int | None:
    """The user id of the process that holds the client's end of a TCP connection; None: not known."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(OSError, ValueError, struct.error):
        return _ask_kernel(client, server)
    with contextlib.suppress(OSError, ValueError):
        return _read_table(client, server)
    return None


def _ask_kernel(client: Address, server: Address) -> int | None:
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    addresses = [socket.inet_pton(family, host).ljust(16, b"\0") for host, _ in (client, server)]
    ends = struct.pack("!HH", client[1], server[1]) + b"".join(addresses)
    body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    body += ends + struct.pack("=I", 0) + _ANY_COOKIE
    header = struct.pack("=IHHII", 16 + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(header + body)
        reply = kernel.recv(8192)
    if struct.unpack_from("=H", reply, 4)[0] != _SOCK_DIAG_BY_FAMILY:
        return None  # an error: there is no such socket
    # struct inet_diag_msg after the header: 4 bytes, the socket id (48), expires, rqueue, wqueue, uid, inode.
    uid, inode = struct.unpack_from("=II", reply, 16 + 4 + 48 + 12)
    return int(uid) if inode else None


def _read_table(client: Address, server: Address) -> int | None:
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    path = Path("/proc/net/tcp6" if family == socket.AF_INET6 else "/proc/net/tcp")
    with path.open() as table:
        lines = table.read(_MAX_TABLE_BYTES).splitlines()[1:]
    ends = [f"{_hex(family, host)}:{port:04X}" for host, port in (client, server)]
    for line in lines:
        fields = line.split()
        if fields[1:3] == ends:
            return int(fields[7]) if fields[9] != "0" else None
    return None


def _hex(family: int, host: str) -> str:
    """An address as the table writes it: each word in the machine's byte order."""
    packed = socket.inet_pton(family, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words)
