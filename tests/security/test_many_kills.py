"""Many kills under load of a batch run, the trajectory API and writers of the store: none lost or doubled.

Those of engine, trainer and supervisor are in tests/rl/test_many_kills.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.kills import kill_agents
from tests.batch.drive import rows
from tests.batch.kills import run_with_kills
from tests.rollouts.kill_load import check, kill_often
from tests.security.many_kills import KILLS, account

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def test_a_batch_run_gives_the_same_dataset(tmp_path: Path) -> None:
    with account("batch") as figures:
        run_with_kills(tmp_path, kills=KILLS, tasks=4 * KILLS)
        figures["samples, each once and equal to those of an unbroken run"] = len(rows(tmp_path, "broken"))


def test_the_api_loses_no_group_and_repeats_none_unsaid(tmp_path: Path) -> None:
    with account("api") as figures:
        load, status = kill_often(KILLS, tmp_path)
        check(load, status)
        figures["groups acknowledged and served"] = sum(load.posted.values())
        figures["batches"] = int(status["current_step"])
        figures["deliveries that were repeated and said so"] = sum(
            receipt.redelivered > 0 for receipt in load.receipts
        )


def test_the_store_keeps_every_acknowledged_step(tmp_path: Path) -> None:
    with account("store") as figures:
        figures["steps acknowledged and kept"] = kill_agents(tmp_path, KILLS)
