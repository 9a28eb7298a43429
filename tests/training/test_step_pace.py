"""The remaining time of a run."""

from __future__ import annotations

from hermes.training.monitor.step_pace import StepPace


def test_the_remaining_time_follows_the_last_twenty_steps() -> None:
    moments = iter([0.0, *(2.0 * step for step in range(1, 41)), *(80.0 + 4 * step for step in range(1, 61))])
    pace = StepPace(100, lambda: next(moments))
    lines = [pace.left(step) for step in range(1, 101)]
    assert lines[0] == "  3 min 18 s left" and lines[39] == "  2 min 00 s left"
    assert lines[59] == "  2 min 40 s left", "forty steps at the new pace"
    assert lines[98] == "  4.0 s left" and lines[99] == ""
