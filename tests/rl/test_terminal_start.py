"""`hermes rl start` at a real terminal: it samples first, and starts no run that would not learn."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.rl.run import all_runs
from tests.cli.terminal import hermes_terminal
from tests.rl.conftest import MakeHome

WORTHLESS = Path(__file__).parent / "sabotage" / "worthless.py"
ROOT = Path(__file__).parents[2]
NO_SIGNAL = "the run would not learn: within every group all rewards are equal"
TOO_SLOW = "no group could be sampled: it took longer than 60 s"
"""On a machine that is busy; no run is started then either."""
_PATIENCE_S = 800.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_run_without_signal_is_not_started(home_with: MakeHome) -> None:
    home = home_with()
    with hermes_terminal(home, "rl", "start", "--env", str(WORTHLESS), cwd=ROOT) as terminal:
        terminal.expect(r"preflight: sampling from the policy it starts from .* … \d+ s", _PATIENCE_S)
        ending = terminal.expect(rf"error: (?:{NO_SIGNAL}|{TOO_SLOW})", _PATIENCE_S)
        fix = "warm-start it on examples first" if NO_SIGNAL in ending else "hermes rl preflight --seconds N"
        terminal.expect(rf"fix: .*{fix}", _PATIENCE_S)
        assert terminal.wait() == 1
    assert list(all_runs(home)) == []


def test_ctrl_c_in_the_preflight_says_that_no_run_was_started(home_with: MakeHome) -> None:
    home = home_with()
    with hermes_terminal(home, "rl", "start", "--env", str(WORTHLESS), cwd=ROOT) as terminal:
        terminal.expect(r"preflight: sampling", _PATIENCE_S)
        terminal.type("\x03")
        terminal.expect(r"interrupted; if it printed no run id, no run was started", _PATIENCE_S)
        assert terminal.wait() == 130
    assert list(all_runs(home)) == []
