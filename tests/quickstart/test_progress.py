"""How far, how fast, how long still."""

from __future__ import annotations

from hermes.core.clock import duration, rate_text
from hermes.quickstart.progress import INTERVAL_S, StageMeter


def test_a_line_at_intervals_and_one_at_the_end() -> None:
    now_s, lines = [0.0], list[str]()
    meter = StageMeter("rollouts", 4, lines.append, lambda: now_s[0])
    meter.add()
    assert lines == []
    now_s[0] = INTERVAL_S
    meter.add(note="reward 0.500")
    assert lines == ["   rollouts 2/4  24.0/min  5.0 s left  reward 0.500"]
    now_s[0] += 1
    meter.add()
    assert len(lines) == 1
    now_s[0] += 1
    meter.add()
    assert lines[1:] == ["   rollouts 4/4  34.3/min  7.0 s"]


def test_the_first_of_many_do_not_tell_how_long_the_rest_takes() -> None:
    now_s, lines = [0.0], list[str]()
    meter = StageMeter("rollouts", 1000, lines.append, lambda: now_s[0])
    now_s[0] = INTERVAL_S
    meter.add()
    now_s[0] += INTERVAL_S
    meter.add(99)
    assert lines == ["   rollouts 1/1000", "   rollouts 100/1000  10.0/s  90 s left"]


def test_the_rate_of_steps_does_not_count_what_comes_before_the_first() -> None:
    now_s, lines = [0.0], list[str]()
    meter = StageMeter("step", 4, lines.append, lambda: now_s[0], set_up=True)
    for end_s in (70.0, 80.0, 90.0, 100.0):
        now_s[0] = end_s
        meter.add()
    assert lines == [
        "   step 1/4",
        "   step 2/4  6.0/min  20 s left",
        "   step 3/4  6.0/min  10 s left",
        "   step 4/4  6.0/min  1 min 40 s",
    ]


def test_a_stage_that_takes_no_time_has_no_rate() -> None:
    lines = list[str]()
    StageMeter("steps", 1, lines.append, lambda: 3.0).add()
    assert lines == ["   steps 1/1"]


def test_rates_and_durations_are_told_in_units_that_fit() -> None:
    assert [rate_text(2.345), rate_text(0.5)] == ["2.3/s", "30.0/min"]
    assert [duration(1.25), duration(42.4), duration(99.6), duration(301)] == [
        "1.2 s",
        "42 s",
        "1 min 40 s",
        "5 min 01 s",
    ]
