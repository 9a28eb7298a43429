"""The guard against over-optimisation: it ends a run that pleases only its reward model, and no other."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from hermes.training.monitor.overoptimisation import (
    OVEROPTIMISED,
    FallDetector,
    OveroptimisationGuard,
    read_rows,
)
from hermes.training.preference.reference import agreement


def first_stop(proxies: list[float], truths: list[float]) -> int | None:
    detector = FallDetector()
    for step, (proxy, truth) in enumerate(zip(proxies, truths, strict=True), 1):
        if detector.add(proxy, truth):
            return step
    return None


def noisy(values: list[float], seed: int, size: float = 0.02) -> list[float]:
    rng = random.Random(seed)
    return [value + rng.gauss(0, size) for value in values]


RISING = [0.3 + 0.015 * step for step in range(40)]
HUMP = [0.3 + 0.02 * step if step < 15 else 0.6 - 0.02 * (step - 15) for step in range(40)]


def test_a_truth_that_falls_while_the_proxy_rises_ends_the_run() -> None:
    for seed in range(20):
        step = first_stop(noisy(RISING, seed), noisy(HUMP, seed + 100))
        assert step is not None and 16 < step < 34, seed


def test_a_run_in_which_both_rise_or_both_stand_still_goes_on() -> None:
    level = [0.5] * 40
    for seed in range(20):
        assert first_stop(noisy(RISING, seed), noisy(RISING, seed + 100)) is None, seed
        assert first_stop(noisy(level, seed), noisy(level, seed + 100)) is None, seed


def test_a_run_in_which_both_fall_is_no_over_optimisation() -> None:
    assert first_stop(RISING[::-1], RISING[::-1]) is None


def test_a_resumed_run_has_the_measurements_of_the_one_before(tmp_path: Path) -> None:
    proxies, truths = noisy(RISING, 1), noisy(HUMP, 2)
    whole = first_stop(proxies, truths)
    assert whole is not None
    rows = [
        {"step": step, "reward/mean": proxy, "reward/true": truth}
        for step, (proxy, truth) in enumerate(zip(proxies, truths, strict=True), 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:12]))
    guard = OveroptimisationGuard()
    guard.replay(read_rows(tmp_path, 10))
    reasons = {int(row["step"]): guard.judge(row) for row in rows[10:]}
    first = next(step for step, reason in reasons.items() if reason)
    assert first == whole and (reasons[first] or "").startswith(OVEROPTIMISED)


@pytest.mark.parametrize("beside", [{}, {"reward/true": 0.75}], ids=["alone", "beside a true reward"])
def test_a_held_out_preference_that_falls_ends_the_run(beside: dict[str, float]) -> None:
    guard = OveroptimisationGuard()
    for proxy in (0.1, 0.2, 0.3, 0.4, 0.5):
        assert guard.judge({"reward/mean": proxy}) is None, "no measurement"
        assert guard.judge({"reward/mean": proxy, "eval/preference": 0.9, **beside}) is None
    reasons = [guard.judge({"reward/mean": 0.9, "eval/preference": 0.2, **beside}) for _ in range(4)]
    assert any(reasons)


def test_a_policy_agrees_where_the_chosen_answer_gained_more() -> None:
    assert agreement([1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 3.0, -1.0]) == (1 + 0.5 + 0 + 1) / 4
