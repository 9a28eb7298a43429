"""kill -9 under load: what was acknowledged is served, once, or again under the same lease and saying so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rollouts.kill_load import check, kill_often


def test_five_kills_under_load_lose_nothing_and_repeat_nothing_unsaid(tmp_path: Path) -> None:
    load, status = kill_often(5, tmp_path)
    check(load, status)
    assert sum(load.posted.values()) > 15


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_kills_under_load_lose_nothing_and_repeat_nothing_unsaid(tmp_path: Path) -> None:
    load, status = kill_often(200, tmp_path)
    check(load, status)
    assert sum(load.posted.values()) > 1_000 and len(load.acknowledged) > 50
    assert any(receipt.redelivered for receipt in load.receipts), "no crash ever met a batch on its way"
