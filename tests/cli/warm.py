"""Starts `hermes` from a process that has read its modules already: a third of a second less a command.

Each command is a process of its own with its own arguments, environment, directory and streams, and ends
as a Python process ends; only the reading of the modules is shared. What a cold start does is shown
elsewhere: the README's commands, chats in a terminal and every server and worker are started anew.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

PACKAGES = ("hermes.cli", "hermes.config", "hermes.store", "hermes.agent", "hermes.tools", "hermes.data")
LIBRARIES = ("hermes.models.remote.openai_chat", "openai", "openai.types.chat", "ruamel.yaml")
MOST_BYTES = 60_000
"""What a pipe holds without a reader; also fits into one message."""


@dataclass(frozen=True)
class Command:
    arguments: list[str]
    environ: dict[str, str]
    cwd: str


def run(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    stdin: str,
    timeout_s: float | None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """What subprocess.run gives for `python -m hermes` with these arguments."""
    command = Command(list(arguments), dict(environ), str(cwd or Path.cwd()))
    message, data = json.dumps(asdict(command)).encode(), stdin.encode()
    assert max(len(message), len(data)) < MOST_BYTES
    given, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(data)
    mine, theirs = socket.socketpair()
    with TemporaryFile() as out, TemporaryFile() as err, mine:
        handed = (given, out.fileno(), err.fileno(), theirs.fileno())
        socket.send_fds(_starter(), [message], handed)
        os.close(given)
        theirs.close()
        returncode = _ended(mine, arguments, timeout_s)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(arguments, returncode, *texts)


def _ended(answers: socket.socket, arguments: Sequence[str], timeout_s: float | None) -> int:
    """The exit code, once there is one; a process that takes too long is killed first."""
    lines = answers.makefile("r")
    pid = int(lines.readline())
    in_time, _, _ = select.select([answers], [], [], timeout_s)
    if not in_time:
        os.kill(pid, signal.SIGKILL)
    returncode = int(lines.readline())
    if not in_time:
        raise subprocess.TimeoutExpired(list(arguments), timeout_s or 0)
    return returncode


@cache
def _starter() -> socket.socket:
    """The line to the process that starts commands; that one ends when this one does."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, "-m", "tests.cli.warm", str(theirs.fileno())],
        env={"LANG": os.environ.get("LANG", "")},  # says how streams are encoded
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()
    return mine


def _serve(line: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a minder ended
    while True:
        message, handed, _, _ = socket.recv_fds(line, MOST_BYTES, 4)
        if not message:
            return
        if os.fork() == 0:
            line.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _mind(Command(**json.loads(message)), handed)
        for descriptor in handed:
            os.close(descriptor)


def _mind(command: Command, handed: list[int]) -> None:
    """Returns in the process that is to be the command; the other tells its number and how it ended."""
    pid = os.fork()
    if pid == 0:
        return _become(command, handed)
    for descriptor in handed[:3]:
        os.close(descriptor)
    with socket.socket(fileno=handed[3]) as asker:
        asker.sendall(f"{pid}\n".encode())
        status = os.waitpid(pid, 0)[1]
        asker.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(command: Command, handed: list[int]) -> None:
    for number, descriptor in enumerate(handed[:3]):
        os.dup2(descriptor, number)
    for descriptor in handed:
        os.close(descriptor)
    os.chdir(command.cwd)
    os.environ.clear()
    os.environ.update(command.environ)
    sys.argv[1:] = command.arguments
    runpy.run_module("hermes", run_name="__main__", alter_sys=True)


def _read_modules() -> None:
    for name in (*PACKAGES, *LIBRARIES):
        module = importlib.import_module(name)
        for found in pkgutil.iter_modules(getattr(module, "__path__", ()), name + "."):
            if name in PACKAGES:
                importlib.import_module(found.name)


if __name__ == "__main__":
    _read_modules()
    gc.freeze()  # else every command would spend its last fifth of a second on looking through them
    _serve(socket.socket(fileno=int(sys.argv[1])))
