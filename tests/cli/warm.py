"""Starts `hermes` from a process that has read its modules already: a third of a second less a command, four
seconds less one that computes with torch.

Each command is a process of its own with its own arguments, environment, directory and streams, and ends
as a Python process ends; only the reading of the modules is shared. What a cold start does is shown
elsewhere: the README's commands, chats in a terminal, and the processes that a command starts are cold.
"""

from __future__ import annotations

import contextlib
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
from typing import IO

PACKAGES = ("hermes.cli", "hermes.config", "hermes.store", "hermes.agent", "hermes.tools", "hermes.data")
LIBRARIES = ("hermes.models.remote.openai_chat", "openai", "openai.types.chat", "ruamel.yaml")
COMPUTING = ("hermes.engine", "hermes.training")
COMPUTING_LIBRARIES = ("torch", "transformers", "safetensors.torch", "tinker", "tokenizers", "uvicorn")
MOST_BYTES = 60_000
"""What a pipe holds without a reader; also fits into one message."""


@dataclass(frozen=True)
class Command:
    arguments: list[str]
    environ: dict[str, str]
    cwd: str
    own_session: bool = False


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
        process = WarmProcess(mine, None)
        try:
            returncode = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(arguments, returncode, *texts)


def start(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    stdout: int | None = None,
    stderr: int = 2,
    own_session: bool = False,
) -> WarmProcess:
    """A command that computes, or a server, which the caller ends. Without `stdout` its output is piped."""
    command = Command(list(arguments), dict(environ), str(Path.cwd()), own_session)
    reading, writing = os.pipe() if stdout is None else (None, stdout)
    mine, theirs = socket.socketpair()
    with Path(os.devnull).open("rb") as nothing:
        handed = (nothing.fileno(), writing, stderr, theirs.fileno())
        socket.send_fds(_starter(computing=True), [json.dumps(asdict(command)).encode()], handed)
    theirs.close()
    if reading is not None:
        os.close(writing)
    return WarmProcess(mine, None if reading is None else os.fdopen(reading))


class WarmProcess:
    """What tests use of a subprocess.Popen."""

    def __init__(self, reports: socket.socket, stdout: IO[str] | None) -> None:
        self._reports = reports
        self._lines = reports.makefile("r")
        self.pid = int(self._lines.readline())
        self.stdout = stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended, _, _ = select.select([self._reports], [], [], timeout)
            if not ended:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(self._lines.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


@cache
def _starter(computing: bool = False) -> socket.socket:
    """The line to the process that starts commands; that one ends when this one does."""
    unbuffered = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, "-m", "tests.cli.warm", str(theirs.fileno()), *(["computing"] if computing else [])],
        env={"LANG": os.environ.get("LANG", ""), **(unbuffered if computing else {})},  # LANG: the encoding
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
    if command.own_session:
        os.setsid()
    os.chdir(command.cwd)
    os.environ.clear()
    os.environ.update(command.environ)
    sys.argv[1:] = command.arguments
    runpy.run_module("hermes", run_name="__main__", alter_sys=True)


def _read_modules(computing: bool) -> None:
    for name in (*LIBRARIES, *(COMPUTING_LIBRARIES if computing else ())):
        importlib.import_module(name)
    for name in PACKAGES:
        for module in pkgutil.iter_modules(importlib.import_module(name).__path__, name + "."):
            importlib.import_module(module.name)
    for name in COMPUTING if computing else ():
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name not in ("triton", "ray"):  # kernels of a GPU, clusters
                    raise


if __name__ == "__main__":
    _read_modules("computing" in sys.argv)
    gc.freeze()  # else every command would spend its last fifth of a second on looking through them
    _serve(socket.socket(fileno=int(sys.argv[1])))
