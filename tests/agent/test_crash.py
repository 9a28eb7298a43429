"""kill -9 of a working agent, fifty times: no acknowledged step is lost, the database stays whole."""

from __future__ import annotations

from pathlib import Path

from tests.agent.kills import kill_agents

KILLS = 50


def test_fifty_kills_lose_no_acknowledged_step(tmp_path: Path) -> None:
    kill_agents(tmp_path, KILLS)
