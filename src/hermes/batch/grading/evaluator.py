"""The process that evaluates a policy's text for a grader: the far side of `worker`.

It imports the grader's module once and then only forks. Each call runs in an *evaluator*, a child with a
limit of processor time and memory and, on Linux, a system call filter under which it can calculate and read
files, and nothing else. Whatever a text makes a package do there ends with that child: the next call begins
with the state of the import. A *minder* between the two waits for the evaluator and reports how it ended, so
that a call does not wait for another one.

Request: a 4-byte length with the descriptor for the reply, then a JSON object: function, arguments, cpu_s,
wall_s, and optionally prepare (a function and its arguments, which never come from a policy: it runs before
the fork). Reply, once: {result}, {error}, {exhausted} for what used up its limits or crashed, or {stalled}.
"""

from __future__ import annotations

import importlib
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

from hermes.core import JSONObject
from hermes.sandbox.guards import seccomp

MEMORY_BYTES = 2 * 1024**3
_MAX_REPLY_BYTES = 1 << 20
_FILE_BYTES = 1 << 20


def main(module_name: str, channel_fd: int) -> None:
    channel = socket.socket(fileno=channel_fd)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)  # it ends when its channel closes
    module = importlib.import_module(module_name)
    getattr(module, "preload", _nothing)()
    channel.sendall(b"r")
    while (request := _receive(channel)) is not None:
        call, reply = request
        problem = _prepare(module, call)
        if os.fork() == 0:
            channel.close()
            _mind(module, call, reply, problem)
        os.close(reply)


def _nothing() -> None:
    """For a module that has nothing to load ahead."""


def _receive(channel: socket.socket) -> tuple[JSONObject, int] | None:
    head, descriptors, _, _ = socket.recv_fds(channel, 4, 1)
    if not head:
        return None
    head += _read_exactly(channel, 4 - len(head))
    (length,) = struct.unpack("!I", head)
    return json.loads(_read_exactly(channel, length)), descriptors[0]


def _read_exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = channel.recv(size - len(data))
        if not chunk:
            os._exit(1)  # cut off in the middle of a request
        data += chunk
    return bytes(data)


def _prepare(module: Any, call: JSONObject) -> str | None:
    """Runs what later calls find ready; a description of the error if it fails."""
    if "prepare" not in call:
        return None
    function, arguments = call["prepare"]
    try:
        getattr(module, function)(**arguments)
    except Exception as error:  # noqa: BLE001  sent to the caller, which raises GraderError
        return _described(error)
    return None


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _mind(module: Any, call: JSONObject, reply_fd: int, problem: str | None) -> NoReturn:
    """Runs the evaluator, waits for it, and sends one reply."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        reply = {"error": problem} if problem else _run_evaluator(module, call, reply_fd)
    except OSError as error:  # no process or descriptor is left
        reply = {"error": _described(error)}
    try:
        os.write(reply_fd, json.dumps(reply).encode())
    finally:
        os._exit(0)


def _run_evaluator(module: Any, call: JSONObject, reply_fd: int) -> JSONObject:
    reader, writer = os.pipe()
    evaluator = os.fork()
    if evaluator == 0:
        os.close(reader)
        os.close(reply_fd)
        _evaluate(module, call, writer)
    os.close(writer)
    return _outcome(evaluator, reader, call["wall_s"])


def _evaluate(module: Any, call: JSONObject, writer: int) -> NoReturn:
    reply: JSONObject
    try:
        _confine(call["cpu_s"])
        reply = {"result": getattr(module, call["function"])(**call["arguments"])}
    except (MemoryError, RecursionError) as error:
        reply = {"exhausted": type(error).__name__}
    except BaseException as error:  # noqa: BLE001  sent to the caller, which raises GraderError
        reply = {"error": _described(error)}
    try:
        os.write(writer, json.dumps(reply).encode()[:_MAX_REPLY_BYTES])
    finally:
        os._exit(0)


def _confine(cpu_s: float) -> None:
    limits = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, math.ceil(cpu_s)),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
    ]
    if sys.platform != "darwin":  # where setting RLIMIT_AS fails
        limits.append((resource.RLIMIT_AS, MEMORY_BYTES))
    for kind, value in limits:
        resource.setrlimit(kind, (value, value + (kind == resource.RLIMIT_CPU)))
    machine = seccomp.machine()
    if machine is not None:
        seccomp.enter(seccomp.evaluator_filter(machine))


def _outcome(evaluator: int, reader: int, wall_s: float) -> JSONObject:
    """The reply of the evaluator; if there is none, how it ended."""
    data, deadline = bytearray(), time.monotonic() + wall_s
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    while len(data) <= _MAX_REPLY_BYTES:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0 or not poller.poll(remaining_s * 1000):
            os.kill(evaluator, signal.SIGKILL)
            os.waitpid(evaluator, 0)
            return {"stalled": wall_s}
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            break
        data += chunk
    os.kill(evaluator, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(evaluator, 0)[1])
    return _decoded(bytes(data), status)


def _decoded(data: bytes, status: int) -> JSONObject:
    try:
        reply = json.loads(data)
    except ValueError:
        reply = None
    if isinstance(reply, dict) and len(reply) == 1 and reply.keys() <= {"result", "error", "exhausted"}:
        return reply
    reason = signal.Signals(-status).name if status < 0 else f"exit code {status}"
    return {"exhausted": reason}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
