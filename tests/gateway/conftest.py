"""A gateway in this process, in front of a scripted provider, over real sockets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes.config.load import Config, load
from hermes.config.paths import db_path
from hermes.core import Trajectory
from hermes.gateway.journal import Recording
from hermes.gateway.relay import RelayOptions
from hermes.gateway.service import CommandRecording, record_command
from hermes.gateway.upstream import Accounts, Upstream
from hermes.gateway.wire import Protocol
from hermes.store import Reader

EVERYTHING = frozenset(Protocol)
Record = Callable[..., "contextmanager[CommandRecording]"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return load()


def upstream(url: str, protocols: frozenset[Protocol] = EVERYTHING, **fields: object) -> Upstream:
    return Upstream("scripted", f"{url}/v1", protocols, **fields)  # type: ignore[arg-type]


@contextmanager
def gateway(
    config: Config, url: str, protocols: frozenset[Protocol] = EVERYTHING, **options: object
) -> Iterator[CommandRecording]:
    """Calls below its URL are trajectories when the block ends."""
    chosen = upstream(url, protocols)
    with record_command(config, RelayOptions(chosen, Accounts(), **options), "key") as recording:  # type: ignore[arg-type]
        yield recording


def stored(config: Config) -> list[Trajectory]:
    """Everything in the store, oldest first."""
    with Reader(db_path(config.home)) as reader:
        return [reader.get(row.id) for row in reversed(reader.summaries(limit=10_000))]


def calls_on_disk(config: Config) -> int:
    return sum(1 for path in config.home.rglob("*.jsonl") for _ in Recording(path).calls())


@contextmanager
def serving(config: Config, *words: str, **variables: str) -> Iterator[str]:
    command = [sys.executable, "-m", "hermes", "record", "serve", "--port", "0", *words]
    environ = {**os.environ, "HERMES_HOME": str(config.home), **variables}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    assert child.stdout is not None
    match = re.search(r"http://[\d.]+:\d+", child.stdout.readline())
    assert match is not None
    try:
        yield match[0]
    finally:
        child.terminate()
        assert child.wait() == 0
        child.stdout.close()


def hermes(config: Config, folder: Path, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """The command line, in `folder` and with the home of `config`."""
    environ = {**os.environ, "HERMES_HOME": str(config.home), "OPENAI_API_KEY": "sk-own-0123456789"}
    return subprocess.run(
        [sys.executable, "-m", "hermes", *words],
        cwd=folder,
        env=environ,
        input=text,
        capture_output=True,
        text=True,
    )
