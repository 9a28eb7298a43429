"""Joins the network namespace of a process to the outside through a tunnel, and restricts its routes.

A script that needs only the standard library; its argument is a JSON object: pid, tunnel (a command line with
{userns} and {netns}) and routes (`plan.RoutePlan`). It prints `READY` once the tunnel works and every route
is set, and then waits for the tunnel. The routes that refuse are set before the tunnel starts. It needs the
rights of the user who created the namespace.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

READY = "network-ready"
_START_TIMEOUT_S = 30.0
_NS_GET_USERNS = 0xB701
_CAPABILITY_VERSION_3 = 0x20080522
_RTM_NEWROUTE = 24
_REQUEST_ACK_CREATE_REPLACE = 0x1 | 0x4 | 0x400 | 0x100
_NLMSG_ERROR = 2
_TABLE_MAIN, _PROTOCOL_STATIC = 254, 4
_UNICAST, _PROHIBIT = 1, 8
_EVERYWHERE, _LINK = 0, 253
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5


def main(request: dict[str, Any]) -> int:
    netns = os.open(f"/proc/{request['pid']}/ns/net", os.O_RDONLY)
    # The owner of the network, which is not the namespace that bubblewrap leaves its process in.
    userns = fcntl.ioctl(netns, _NS_GET_USERNS)
    routes = request["routes"]
    _inside(userns, netns, lambda: _refuse(routes["refused"]))
    holder = _hold_files()
    tunnel = os.fork()
    if tunnel == 0:
        _exec_tunnel(request["tunnel"], f"/proc/{holder}/fd/{userns}", f"/proc/{request['pid']}/ns/net")
    try:
        _inside(userns, netns, lambda: _open_routes(routes), tunnel)
    except OSError:
        os.kill(tunnel, signal.SIGKILL)
        os.waitpid(tunnel, 0)
        raise
    _say(READY)
    return os.waitstatus_to_exitcode(os.waitpid(tunnel, 0)[1])


def _hold_files() -> int:
    """A process that has the descriptors of this one and no capabilities; the keeper ends it.

    A tunnel that dropped its capabilities may open the files of a process that has none, not of this one.
    """
    reader, writer = os.pipe()
    holder = os.fork()
    if holder == 0:
        header, nothing = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
        dropped = ctypes.CDLL(None).capset(header, nothing) == 0
        os.write(writer, b"1" if dropped else b"0")
        while True:
            signal.pause()
    os.close(writer)
    dropped = os.read(reader, 1) == b"1"
    os.close(reader)
    if not dropped:
        raise OSError("capabilities cannot be dropped")
    return holder


def _exec_tunnel(argv: list[str], userns: str, netns: str) -> None:
    argv = [argument.replace("{userns}", userns).replace("{netns}", netns) for argument in argv]
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # older versions of pasta end if it is ignored
    try:
        os.execv(argv[0], argv)
    finally:
        os._exit(127)


def _inside(userns: int, netns: int, action: Callable[[], None], tunnel: int | None = None) -> None:
    """Runs the action in a process in these namespaces; OSError with its message if it fails.

    It is given up when the tunnel ends.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        message = ""
        try:
            _enter(userns)
            _enter(netns)
            action()
        except OSError as error:
            message = str(error)
        os.write(writer, message.encode())
        os._exit(1 if message else 0)
    os.close(writer)
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if tunnel is not None and os.waitid(os.P_PID, tunnel, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise OSError("the tunnel has ended")
        time.sleep(0.01)
    message = os.read(reader, 4096).decode()
    os.close(reader)
    if message:
        raise OSError(message)


def _enter(namespace: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the namespace cannot be entered: {os.strerror(number)}")


def _refuse(blocks: list[str]) -> None:
    for block in blocks:
        _add_route(block, kind=_PROHIBIT)


def _open_routes(routes: dict[str, Any]) -> None:
    """Waits for the tunnel's interface, then sets the routes that depend on it."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not _has_default_route(routes["interface"]):
        if time.monotonic() > deadline:
            raise OSError("the tunnel has not set its interface up")
        time.sleep(0.02)
    interface = socket.if_nametoindex(routes["interface"])
    for block in routes["allowed"]:
        _add_route(block, interface=interface, gateway=routes["gateway"])
    _add_route(f"{routes['dns']}/32", interface=interface)
    # A tunnel would pass the rest of its own network on to addresses of the host's networks.
    for half in ipaddress.IPv4Network(routes["guest_network"]).subnets():
        _add_route(str(half), kind=_PROHIBIT)


def _has_default_route(interface: str) -> bool:
    table = Path("/proc/self/net/route").read_text()
    rows = [line.split() for line in table.splitlines()]
    return any(row[0] == interface and row[1] == "00000000" for row in rows)


def _add_route(
    block: str, *, kind: int = _UNICAST, interface: int | None = None, gateway: str | None = None
) -> None:
    network = ipaddress.IPv4Network(block)
    scope = _LINK if interface is not None and gateway is None else _EVERYWHERE
    body = struct.pack(
        "=BBBBBBBBI", socket.AF_INET, network.prefixlen, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, scope, kind, 0
    )
    body += _attribute(_RTA_DST, network.network_address.packed)
    if interface is not None:
        body += _attribute(_RTA_OIF, struct.pack("=I", interface))
    if gateway is not None:
        body += _attribute(_RTA_GATEWAY, socket.inet_aton(gateway))
    head = struct.pack("=IHHII", 16 + len(body), _RTM_NEWROUTE, _REQUEST_ACK_CREATE_REPLACE, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.send(head + body)
        reply = netlink.recv(65_536)
    (reply_kind,) = struct.unpack_from("=H", reply, 4)
    (code,) = struct.unpack_from("=i", reply, 16)
    if reply_kind == _NLMSG_ERROR and code != 0:
        raise OSError(-code, f"the route to {block} cannot be set: {os.strerror(-code)}")


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _attribute(number: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), number) + value


if __name__ == "__main__":
    try:
        sys.exit(main(json.loads(sys.argv[1])))
    except OSError as error:
        _say(str(error))
        sys.exit(1)
