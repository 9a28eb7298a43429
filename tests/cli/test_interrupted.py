"""Ctrl-C and long waits: what was kept is said, and nothing is silent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import click
import pytest

from hermes.cli.main import cli
from hermes.cli.terminal.interrupted import KEPT, STOPPED
from hermes.store import Reader, Writer
from tests import records
from tests.cli.process import PASSED_ON
from tests.cli.terminal import hermes_terminal
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SLOW_RATER = """
import asyncio, pathlib

calls = []

async def reward(ctx):
    calls.append(ctx)
    if len(calls) > {kept}:
        pathlib.Path({marker!r}).touch()
        await asyncio.sleep(600)
    return 1.0
"""


STOPPED_ELSEWHERE = {
    "engine fleet": "tests/rl/test_fleet.py",
    "engine serve": "tests/engine/http/test_serve_command.py",
    "reward serve": "tests/training/preference/test_reward_model.py",
    "rl serve": "tests/rl/test_runs.py",
}
"""Servers that need an engine or a trained model, and where a signal stops them. `env serve` logs its own
line: tests/compat/test_stop.py."""


def test_every_server_is_stopped_by_a_test() -> None:
    assert {*STOPPED_ELSEWHERE, "api", "api in memory", "record serve", "web"} == set(STOPPED)
    for name, file in STOPPED_ELSEWHERE.items():
        text = (ROOT / file).read_text()
        assert f'STOPPED["{name}"]' in text and "SIGINT" in text, name


def _answers(url: str) -> bool:
    with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "arguments",
    [("api",), ("api", "--state-dir", "state"), ("record", "serve"), ("web", "--no-open")],
    ids=" ".join,
)
def test_a_server_that_is_stopped_says_what_is_left(
    tmp_path: Path, arguments: tuple[str, ...], number: signal.Signals
) -> None:
    """The other servers are stopped where they are tested; STOPPED_ELSEWHERE."""
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes", *arguments, "--port", "0"],
        env={**environ, "HERMES_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = re.search(r"http://[\w.:]+", process.stdout.readline())
    assert address is not None
    wait_until(lambda: _answers(address[0]))
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    names = {("api",): "api in memory", ("record", "serve"): "record serve"}
    name = names.get(arguments, arguments[0])
    assert process.returncode == 0 and error.strip().endswith(f"stopped; {STOPPED[name]}"), error


def test_every_sentence_belongs_to_a_command() -> None:
    for path in KEPT:
        command: click.Command | None = cli
        context = click.Context(cli)
        for name in path.split():
            assert isinstance(command, click.Group), path
            command = command.get_command(context, name)
        assert command is not None, path


def test_an_interrupted_command_says_what_was_kept(tmp_path: Path) -> None:
    """`trajectories score` is stopped at its third trajectory: two rewards are in the store, as it says."""
    home, marker = tmp_path / "home", tmp_path / "waits"
    with Writer(home / "hermes.db") as writer:
        for number in range(4):
            records.record(writer, records.conversation("What is 2 + 2?", f"{number}"))
    (tmp_path / "slow.py").write_text(SLOW_RATER.format(kept=2, marker=str(marker)))
    environ = {"HERMES_HOME": str(home), "HOME": str(home), "PATH": os.environ["PATH"]}
    words = ("trajectories", "score", "--reward", f"{tmp_path / 'slow.py'}:reward")
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes", *words], env=environ, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    signs = []
    while not marker.exists():
        assert process.poll() is None, process.stderr.read()
    while not signs or "(scoring … " not in signs[-1]:
        signs.append(process.stderr.readline())
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in error and "Aborted" not in error
    assert "interrupted; what was finished is kept" in error
    with Reader(home / "hermes.db") as reader:
        assert [summary.reward for summary in reader.summaries()].count(1.0) == 2


def test_a_command_without_a_sentence_just_ends(tmp_path: Path) -> None:
    with hermes_terminal(tmp_path, "config", "set", "OPENROUTER_API_KEY") as terminal:
        terminal.expect(r"OPENROUTER_API_KEY")
        terminal.type("\x03")
        assert terminal.wait() != 0
