"""A run without progress is detected by the number of useless results in a row."""

from __future__ import annotations

from hermes.core.stall_guard import Stall, StallGuard


def test_a_category_stalls_at_its_limit_and_the_first_one_is_reported() -> None:
    guard = StallGuard()
    limits = {"failed": 2, "equal scores": 3}
    for category in ("equal scores", "failed", "equal scores"):
        guard.record_useless(category)
        assert guard.find_stall(limits) is None
    guard.record_useless("equal scores")
    assert guard.find_stall(limits) == Stall("equal scores", 3)
    guard.record_useless("failed")
    assert guard.find_stall(limits) == Stall("failed", 2)
    assert guard.find_stall({"failed": 3}) is None


def test_a_useful_result_resets_every_count() -> None:
    guard = StallGuard()
    guard.record_useless("failed")
    guard.record_useless("equal scores")
    guard.record_useful()
    assert guard.count("failed") == guard.count("equal scores") == 0
    guard.record_useless("failed")
    assert guard.find_stall({"failed": 1, "equal scores": 1}) == Stall("failed", 1)
