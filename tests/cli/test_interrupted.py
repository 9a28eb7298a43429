"""Ctrl-C and long waits: what was kept is said, and nothing is silent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click

from hermes.cli.main import cli
from hermes.cli.terminal.interrupted import KEPT
from hermes.store import Reader, Writer
from tests import records
from tests.cli.terminal import hermes_terminal

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
    assert "interrupted; rewards that were stored are kept; the same command scores all again" in error
    with Reader(home / "hermes.db") as reader:
        assert [summary.reward for summary in reader.summaries()].count(1.0) == 2


def test_a_command_without_a_sentence_just_ends(tmp_path: Path) -> None:
    with hermes_terminal(tmp_path, "config", "set", "OPENROUTER_API_KEY") as terminal:
        terminal.expect(r"OPENROUTER_API_KEY")
        terminal.type("\x03")
        assert terminal.wait() != 0
