"""The process that starts a sandbox's commands, and sees to it that none outlives its time.

Run as a script of its own, from the standard library alone: it may be started where nothing of Hermes can
be imported. It reads requests from the socket whose number is its argument, and for each one forks a
*shepherd*, which starts the command and stays until everything the command started is gone:

- the shepherd is the adoptive parent of orphans (PR_SET_CHILD_SUBREAPER), so a process that leaves its
  group or session, or whose parent exits, is still found below it;
- when the command ends, what it left running is killed;
- when asked to (`k`), the whole tree gets SIGTERM and, a second later, SIGKILL;
- when the other end of its control socket closes, however Hermes died, SIGKILL at once.

So a time-out kills the whole tree, and a killed Hermes leaves nothing running. A process that has changed
its user (sudo) cannot be killed by us and may stay. Where there is no /proc (macOS) only the process
group is ended. Forking here instead of in Hermes also keeps a start cheap, however large Hermes has grown.

Request: a 4-byte length with the descriptors (control, stdin, output), then a JSON object: argv, cwd, env,
rlimits. Answers, on the control socket, one a line: `started` and later `exit CODE`; or `error ERRNO STAGE`.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import json
import math
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

READY = b"r"
"""Sent once, when requests can come."""
GRACE_S = 1.0
"""Between SIGTERM and SIGKILL."""
PATIENCE_S = 3.0
"""How long to go on killing what does not die, before giving up on it."""
_DESCRIPTORS = 3
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main(channel_fd: int) -> None:
    _close_all_but(channel_fd)
    channel = socket.socket(fileno=channel_fd)
    channel.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)  # it ends when its channel does, and not before
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    channel.sendall(READY)
    while True:
        request = _receive(channel)
        if request is None:
            break
        message, descriptors = request
        if _fork() == 0:
            try:
                channel.close()
                _shepherd(message, *descriptors)
            finally:
                os._exit(1)
        for descriptor in descriptors:
            os.close(descriptor)
    # Shepherds end with their control sockets; this is for what a killed shepherd left behind.
    _kill_all()


def _fork() -> int:
    try:
        return os.fork()
    except OSError:
        return -1  # no process to be had: a control socket that closes without a word says as much


def _close_all_but(channel_fd: int) -> None:
    """Nothing that was open for whoever started us is for the commands; stderr was for failing to start."""
    with os.scandir("/dev/fd") as listing:
        inherited = [int(entry.name) for entry in listing]
    for descriptor in inherited:
        if descriptor > 2 and descriptor != channel_fd:
            with contextlib.suppress(OSError):  # the listing's own is closed already
                os.close(descriptor)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.close(null)


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    head, ancillary, _, _ = channel.recvmsg(4, socket.CMSG_SPACE(_DESCRIPTORS * 4))
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


def _shepherd(request: dict[str, Any], control_fd: int, stdin_fd: int, output_fd: int) -> NoReturn:
    control = socket.socket(fileno=control_fd)
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    failure, report = os.pipe()
    child = os.fork()
    if child == 0:
        _become(request, stdin_fd, output_fd, report)
    for descriptor in (stdin_fd, output_fd, report):
        os.close(descriptor)
    problem = os.read(failure, 100).decode()  # ends when the command has replaced its process
    if problem:
        _answer(control, f"error {problem}")
    else:
        _answer(control, "started")
        code, patience_until = _attend(child, control, wake)
        _kill_all(child, patience_until)
        _answer(control, f"exit {code}")
    os._exit(0)


def _answer(control: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        control.sendall(f"{line}\n".encode())


def _become(request: dict[str, Any], stdin_fd: int, output_fd: int, report: int) -> NoReturn:
    """Turns this process into the command, or reports at which stage that failed."""
    stage = "start"
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for target, source in enumerate((stdin_fd, output_fd, output_fd)):
            os.dup2(source, target)
        for number in range(1, signal.NSIG):
            with contextlib.suppress(OSError, ValueError):
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


def _limit(kind: int, soft: int, hard: int) -> None:
    """Sets a limit, or keeps one that is stricter already."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def _attend(child: int, control: socket.socket, wake: int) -> tuple[int, float]:
    """Waits for the command, ending it when asked to.

    Its exit code, 128 + signal if it was killed; and the moment until which the rest of its tree, which was
    asked to end as well, may take its time.
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
            asked = _read_control(control)
            _signal_all(signal.SIGTERM if asked else signal.SIGKILL, child)
            deadline = time.monotonic() + (GRACE_S if asked else 0)
        if time.monotonic() >= deadline:
            _signal_all(signal.SIGKILL, child)
            deadline = time.monotonic() + 0.05


def _read_control(control: socket.socket) -> bytes:
    try:
        return control.recv(1)
    except OSError:
        return b""


def _reap(child: int) -> int | None:
    """Collects whoever has ended; the child's exit code if it is among them."""
    code: int | None = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _kill_all(group: int | None = None, patience_until: float = 0) -> None:
    """Kills until nothing is left below this process: orphans come up to it and are found the next time."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # no children, so nothing below them
            return
        if time.monotonic() >= patience_until:
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
    """Everything below a process, nearest first, as /proc shows it now."""
    children: dict[int, list[int]] = {}
    with os.scandir("/proc") as listing:
        pids = [int(entry.name) for entry in listing if entry.name.isdigit()]
    for pid in pids:
        with contextlib.suppress(OSError):  # gone meanwhile
            stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
            try:
                fields = os.read(stat, 4096).rpartition(b")")[2].split()
            finally:
                os.close(stat)
            children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    pending = [root]
    while pending:
        below = children.get(pending.pop(), [])
        found += below
        pending += below
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
