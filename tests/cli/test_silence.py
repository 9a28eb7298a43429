"""A command that waits for long shows that it lives: each of these is made to wait without end.

What a command waits for is real: a server that accepts and never answers, a grader that never returns, a pipe
without data in place of a file, a store that another process has locked. A test waits for the sign, however
long the machine takes to show it; a command that shows none within `_PATIENCE_S` is silent.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from hermes.store import Writer
from tests import records
from tests.cli.process import PASSED_ON

_PATIENCE_S = 150.0
_AT_ONCE = 5
_SIGN = re.compile(r"… \d+ s|in flight for \d|━")
"""The sign, the line of a batch, or its bar."""
SERVER = (
    "-q hello --model m --base-url URL/v1",
    "batch --dataset-file tasks.jsonl --run-name r --toolsets none",
    "bench --dataset-file tasks.jsonl --models held/a,held/b --toolsets none",
    "doctor",
    "rate auto --judge held/m",
    "rl agent task",
    "rl test --env calculator --model held/m",
    "train grpo --service URL",
    "train ppo --service URL",
)
"""URL: a server that accepts connections and never answers; the provider `held` is there too."""
GRADER = (
    "env check slow_env.py",
    "rate auto --reward slow.py:reward",
    "trajectories score --reward slow.py:reward",
)
"""slow.py has a reward function that never returns."""
FILE = ("import rows.jsonl",)
"""rows.jsonl is a pipe without data."""
STORE = ("store compact", "trajectories delete last --yes")
"""Another process has locked the store."""
SLOW_CODE = """
import pathlib, time

def reward(ctx):
    pathlib.Path({marker!r}).touch()
    time.sleep(3600)
"""
CONFIGURATION = """
model: held/m
providers: {{held: {{base_url: '{url}/v1', max_retries: 0}}}}
"""


class HeldServer:
    """A server that accepts connections and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def is_reached(self) -> bool:
        return bool(self._connections)

    def close(self) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                self._connections.append(self._listener.accept()[0])


def place(folder: Path, url: str) -> Path:
    """A home with one conversation and the provider `held`, and the files that the commands name."""
    home = folder / "home"
    home.mkdir(parents=True)
    (home / "config.yaml").write_text(CONFIGURATION.format(url=url))
    with Writer(home / "hermes.db") as writer:
        records.record(writer, records.conversation("What is 2 + 2?", "4"))
    (folder / "tasks.jsonl").write_text('{"prompt": "Compute 1 + 1", "expected": "2"}\n')
    (folder / "slow.py").write_text(SLOW_CODE.format(marker=str(folder / "begun")))
    (folder / "slow_env.py").write_text(f"{SLOW_CODE.format(marker=str(folder / 'begun'))}\nreward(None)\n")
    os.mkfifo(folder / "rows.jsonl")
    return home


@contextmanager
def running(
    folder: Path, home: Path, line: str, *, terminal: bool
) -> Iterator[tuple[int, Callable[[], bool]]]:
    """The command in a process of its own: where it prints, and whether it still runs."""
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environ |= {"HERMES_HOME": str(home), "HOME": str(folder), "TERM": "xterm", "COLUMNS": "80"}
    shown, printed = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes", *shlex.split(line)],
        cwd=folder,
        env=environ,
        stdin=printed if terminal else subprocess.DEVNULL,
        stdout=printed,
        stderr=printed,
        start_new_session=True,
    )
    os.close(printed)
    try:
        yield shown, lambda: process.poll() is None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(shown)


def watch(
    shown: int, waits: Callable[[], bool], *, terminal: bool, patience_s: float = _PATIENCE_S
) -> str | None:
    """None as soon as the sign is shown while the command waits, else what was printed.

    On a terminal the sign must be drawn again and again; elsewhere one line is enough.
    """
    text, drawn = "", 0
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        ready, _, _ = select.select([shown], [], [], 0.2)
        part = ""
        if ready:
            try:
                part = os.read(shown, 65536).decode("utf-8", "replace")
            except OSError:  # the terminal of a process that has ended
                part = ""
            if not part:
                return f"it ended: {text}"
        text += part
        if not waits():
            continue
        if terminal and _SIGN.search(part):
            drawn += 1
        if drawn >= 2 or (not terminal and _SIGN.search(text)):
            return None
    return f"it was silent: {text}"


def silence_with_server(folder: Path, line: str, terminal: bool) -> str | None:
    server = HeldServer()
    try:
        home = place(folder, server.url)
        with running(folder, home, line.replace("URL", server.url), terminal=terminal) as (shown, _):
            return watch(shown, server.is_reached, terminal=terminal)
    finally:
        server.close()


def silence_with_grader(folder: Path, line: str, terminal: bool) -> str | None:
    home = place(folder, "http://127.0.0.1:9")
    with running(folder, home, line, terminal=terminal) as (shown, _):
        return watch(shown, (folder / "begun").exists, terminal=terminal)


def silence_with_pipe(folder: Path, home: Path, pipe: Path, line: str, terminal: bool) -> str | None:
    with ExitStack() as stack:
        opened: list[int] = []

        def is_read() -> bool:
            """Whether the command reads the pipe; it stays open from then on, and nothing comes."""
            if not opened:
                with suppress(OSError):  # nobody reads
                    opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                    stack.callback(os.close, opened[0])
            return bool(opened)

        shown, _ = stack.enter_context(running(folder, home, line, terminal=terminal))
        return watch(shown, is_read, terminal=terminal)


def silence_with_file(folder: Path, line: str, terminal: bool) -> str | None:
    home = place(folder, "http://127.0.0.1:9")
    return silence_with_pipe(folder, home, folder / "rows.jsonl", line, terminal)


def silence_with_store(folder: Path, line: str, terminal: bool) -> str | None:
    home = place(folder, "http://127.0.0.1:9")
    database = sqlite3.connect(home / "hermes.db", isolation_level=None, check_same_thread=False)
    try:
        database.execute("BEGIN EXCLUSIVE")
        with running(folder, home, line, terminal=terminal) as (shown, runs):
            return watch(shown, runs, terminal=terminal)
    finally:
        database.close()


Case = tuple[str, Callable[[Path, str, bool], str | None]]
CASES: list[Case] = [
    *((line, silence_with_server) for line in SERVER),
    *((line, silence_with_grader) for line in GRADER),
    *((line, silence_with_file) for line in FILE),
    *((line, silence_with_store) for line in STORE),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("cases", "terminal"),
    [
        pytest.param(CASES[::4], False, id="some"),
        pytest.param(CASES, False, id="all", marks=pytest.mark.slow),
        pytest.param(CASES, True, id="terminal", marks=pytest.mark.slow),
    ],
)
def test_no_command_is_silent_while_it_waits(tmp_path: Path, cases: list[Case], terminal: bool) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = {
            line: pool.submit(silence, tmp_path / str(number), line, terminal)
            for number, (line, silence) in enumerate(cases)
        }
    reasons = {line: result.result() for line, result in results.items()}
    silent = [f"hermes {line}: {reason}" for line, reason in reasons.items() if reason is not None]
    assert not silent, "\n".join(silent)


def test_a_silent_command_is_noticed() -> None:
    shown, printed = os.pipe()
    try:
        os.write(printed, b"a line, and then nothing\n")
        reason = watch(shown, lambda: True, terminal=False, patience_s=0.5)
        assert reason == "it was silent: a line, and then nothing\n"
        os.close(printed)
        assert watch(shown, lambda: True, terminal=False) == "it ended: "
    finally:
        os.close(shown)
