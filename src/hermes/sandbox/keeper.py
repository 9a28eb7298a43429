"""The processes that start a sandbox's commands and ensure that no process outlives its command.

It is a script that needs only the standard library. Started once for each Hermes, as the *server*, it reads
from the socket whose number is its first argument, and forks a *keeper* for each sandbox: an interpreter that
starts anew costs ten times as much. The keeper enters the sandbox's namespaces, if it has any, as a user
without capabilities who cannot get any; from there it forks a *shepherd* for each request, which starts the
command and runs until everything that the command started has ended:

- the shepherd is the subreaper of orphans (PR_SET_CHILD_SUBREAPER), so a process that leaves its group or
  session, or whose parent exits, is still its descendant;
- when the command ends, its remaining processes are killed;
- on `k`, the whole tree gets SIGTERM and, a second later, SIGKILL;
- when the other end of its control socket closes, for any reason, SIGKILL at once.

So a time-out kills the whole tree, and a killed Hermes leaves nothing running. A process that has changed
its user (sudo) cannot be killed and may keep running. Without /proc (macOS) only the process group is ended.
Forking here instead of in Hermes also keeps a start cheap, whatever the size of the Hermes process.

Request to the server: as below, with the descriptors (channel of the keeper, entrance of the control group of
the commands if there is one): holder, the process whose namespaces are entered, or 0, and id, the user and
group inside. Response, on the keeper's channel: READY and its process id, or FAILED and the reason.

Request to a keeper: a 4-byte length with the descriptors (control, stdin, output), then a JSON object: argv,
cwd, env, rlimits, attached (in base64: what descriptor 3 of the command reads). Commands have a session
keyring that they share with nothing outside. Responses, on the control socket, one per line: `started` and
later `exit CODE`; or `error ERRNO STAGE`.
"""

from __future__ import annotations

import array
import base64
import contextlib
import ctypes
import errno
import fcntl
import functools
import gc
import json
import math
import os
import platform
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

READY, FAILED = b"r", b"f"
"""Sent once: requests are accepted, four bytes with the keeper's process id follow; or the reason does."""
GRACE_S = 1.0
"""Between SIGTERM and SIGKILL."""
KILL_TIMEOUT_S = 3.0
"""How long to keep killing processes that do not end."""
_MOST_DESCRIPTORS = 3
_NAMESPACES = ("net", "ipc", "uts", "mnt", "user")
"""In the order in which they are entered: /proc may be another one after that of mounts."""
_NS_GET_USERNS = 0xB701
_ATTACHED = 3
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
"""By keepers and shepherds; every other signal has its default, for the commands."""
_CAPABILITY_VERSION_3 = 0x20080522


def main(server_fd: int) -> None:
    """Forks keepers until the other end of the socket closes."""
    _close_all_but(server_fd)
    server = socket.socket(fileno=server_fd)
    server.set_inheritable(False)
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)  # it ends when its channel closes
    signal.signal(signal.SIGCHLD, lambda *_: _reap(0))
    _library()
    gc.disable()  # no process lives long, and a collection would copy the pages that they share
    gc.freeze()
    while (request := _receive(server)) is not None:
        message, descriptors = request
        if _fork() == 0:
            try:
                server.close()
                os.setsid()
                _keep(message, socket.socket(fileno=descriptors[0]), (*descriptors[1:], -1)[0])
            finally:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(message: dict[str, Any], channel: socket.socket, entrance_fd: int) -> NoReturn:
    """`entrance_fd`: the entrance of the control group of the commands, or -1."""
    try:
        if message["holder"]:
            _enter_namespaces(message["holder"], message["id"])
    except OSError as error:
        channel.sendall(FAILED + str(error).encode())
        os._exit(1)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _join_own_keyring()
    channel.sendall(READY + struct.pack("!I", os.getpid()))
    while True:
        request = _receive(channel)
        if request is None:
            break
        message, descriptors = request
        if _fork() == 0:
            try:
                channel.close()
                _shepherd(message, entrance_fd, *descriptors)
            finally:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
    # Shepherds end with their control sockets; this kills what a killed shepherd left behind.
    _kill_all()
    os._exit(0)


def _enter_namespaces(holder: int, inner_id: int) -> None:
    """Becomes the user of these namespaces, without capabilities, for good. OSError: it is not possible."""
    names = {name: os.open(f"/proc/{holder}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES}
    # bubblewrap makes a second namespace of users inside the one that owns the others.
    path = [fcntl.ioctl(names["mnt"], _NS_GET_USERNS), *names.values()]
    if os.geteuid() == 0 and os.getgroups():
        os.setgroups([])
    for descriptor, kind in zip(path, ("user", *_NAMESPACES), strict=True):
        ours = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)
        if os.fstat(descriptor).st_ino != os.fstat(ours).st_ino:
            _check(_library().setns(descriptor, 0))
        os.close(ours)
        os.close(descriptor)
    os.setresgid(inner_id, inner_id, inner_id)
    os.setresuid(inner_id, inner_id, inner_id)
    _check(_library().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_library().capset(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24)))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the sandbox's namespaces cannot be entered: {os.strerror(number)}")


def _fork() -> int:
    try:
        return os.fork()
    except OSError:
        return -1  # no process available: the control socket closes without a response


def _close_all_but(*needed: int) -> None:
    """Closes the inherited descriptors, which are not for the commands."""
    with os.scandir("/dev/fd") as listing:
        inherited = [int(entry.name) for entry in listing]
    for descriptor in inherited:
        if descriptor > 2 and descriptor not in needed:
            with contextlib.suppress(OSError):  # the descriptor of the listing is already closed
                os.close(descriptor)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.close(null)


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, ancillary, _, _ = channel.recvmsg(4, socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4))
    if not head:
        return None
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    head += _read_exactly(channel, 4 - len(head))
    (length,) = struct.unpack("!I", head)
    return json.loads(_read_exactly(channel, length)), list(descriptors)


def _read_exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = channel.recv(size - len(data))
        if not chunk:
            os._exit(1)  # cut off in the middle of a request
        data += chunk
    return data


def _shepherd(
    request: dict[str, Any], entrance_fd: int, control_fd: int, stdin_fd: int, output_fd: int
) -> NoReturn:
    control = socket.socket(fileno=control_fd)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    failure, report = os.pipe()
    child = os.fork()
    if child == 0:
        _exec_command(request, entrance_fd, stdin_fd, output_fd, report)
    for descriptor in (stdin_fd, output_fd, report):
        os.close(descriptor)
    problem = os.read(failure, 100).decode()  # ends when the command has replaced its process
    if problem:
        _respond(control, f"error {problem}")
    else:
        _respond(control, "started")
        code, grace_until = _supervise(child, control, wake)
        _kill_all(child, grace_until)
        _respond(control, f"exit {code}")
    os._exit(0)


def _respond(control: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # the other end is closed
        control.sendall(f"{line}\n".encode())


def _exec_command(
    request: dict[str, Any], entrance_fd: int, stdin_fd: int, output_fd: int, report: int
) -> NoReturn:
    """Replaces this process by the command, or reports the stage that failed."""
    stage = "start"
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if entrance_fd >= 0:
            os.write(entrance_fd, b"0")
        for target, source in enumerate((stdin_fd, output_fd, output_fd)):
            os.dup2(source, target)
        if request["attached"]:
            _attach(base64.b64decode(request["attached"]))
        for number in _IGNORED:
            signal.signal(number, signal.SIG_DFL)
        for name, soft, hard in request["rlimits"]:
            _limit(getattr(resource, name), soft, hard)
        stage = "cwd"
        os.chdir(request["cwd"])
        stage = "exec"
        argv = request["argv"]
        os.execve(argv[0], argv, request["env"])
    except (OSError, ValueError) as error:
        os.write(report, f"{getattr(error, 'errno', None) or errno.EINVAL} {stage}".encode())
    os._exit(127)


def _attach(data: bytes) -> None:
    """Makes the data readable as descriptor 3 of this process, across exec."""
    descriptor = os.memfd_create("attached", 0)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    if descriptor == _ATTACHED:
        os.set_inheritable(descriptor, True)
    else:
        os.dup2(descriptor, _ATTACHED, inheritable=True)
        os.close(descriptor)


def _limit(kind: int, soft: int, hard: int) -> None:
    """Sets a limit, unless a stricter one is in force."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def _supervise(child: int, control: socket.socket, wake: int) -> tuple[int, float]:
    """Waits for the command and ends it on request.

    Returns its exit code, 128 + signal if it was killed, and the time until which the rest of its tree, which
    also got SIGTERM, is not killed.
    """
    deadline = math.inf
    while True:
        code = _reap(child)
        if code is not None:
            return code if code >= 0 else 128 - code, 0 if deadline == math.inf else deadline
        if deadline == math.inf:
            ready, _, _ = select.select([wake, control.fileno()], [], [])
        else:
            ready, _, _ = select.select([wake], [], [], max(deadline - time.monotonic(), 0))
        if wake in ready:
            os.read(wake, 4096)
        if control.fileno() in ready:
            request = _read_control(control)
            _signal_all(signal.SIGTERM if request else signal.SIGKILL, child)
            deadline = time.monotonic() + (GRACE_S if request else 0)
        if time.monotonic() >= deadline:
            _signal_all(signal.SIGKILL, child)
            deadline = time.monotonic() + 0.05


def _read_control(control: socket.socket) -> bytes:
    try:
        return control.recv(1)
    except OSError:
        return b""


def _reap(child: int) -> int | None:
    """Reaps ended processes; the child's exit code if it is among them."""
    code: int | None = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _kill_all(group: int | None = None, grace_until: float = 0) -> None:
    """Kills until this process has no descendants: orphans are reparented to it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # no children, so nothing below them
            return
        if time.monotonic() >= grace_until:
            _signal_all(signal.SIGKILL, group)
        time.sleep(0.002)


def _signal_all(number: int, group: int | None) -> None:
    if sys.platform != "linux":
        with contextlib.suppress(OSError):
            os.killpg(group or os.getpid(), number)
        return
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _descendants(root: int) -> list[int]:
    """All descendants of a process, nearest first, according to /proc."""
    children: dict[int, list[int]] = {}
    with os.scandir("/proc") as listing:
        pids = [int(entry.name) for entry in listing if entry.name.isdigit()]
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended in the meantime
            stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
            try:
                fields = os.read(stat, 4096).rpartition(b")")[2].split()
            finally:
                os.close(stat)
            children.setdefault(int(fields[1]), []).append(pid)
    descendants: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        descendants += below
        pending += below
    return descendants


def _join_own_keyring() -> None:
    """Leaves the session keyring of the process that started this one; fails where there are no keyrings."""
    number = _KEYCTL.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        _library().syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None)


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _library().prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
