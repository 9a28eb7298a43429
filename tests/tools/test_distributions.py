"""Draws are reproducible everywhere and come out as often as the percentages say."""

from __future__ import annotations

import subprocess
import sys
from math import prod

import pytest

from hermes.errors import ConfigError, UsageError
from hermes.tools.distributions import DISTRIBUTIONS, available, resolve, sample

DRAWS = 10_000


def test_there_are_seventeen_and_each_names_real_toolsets() -> None:
    assert len(DISTRIBUTIONS) == 17
    assert available(dict(DISTRIBUTIONS)) == dict(DISTRIBUTIONS)  # checked as if they were the user's own


@pytest.mark.parametrize(
    ("name", "percents"),
    [
        ("default", "web 100 vision 100 image_gen 100 terminal 100 file 100 browser 100"),
        ("balanced", "web 50 vision 50 image_gen 50 terminal 50 file 50 browser 50"),
        ("image_gen", "image_gen 90 vision 90 web 55 terminal 45"),
        ("creative", "image_gen 90 vision 90 web 30"),
        ("research", "web 90 browser 70 vision 50 terminal 10"),
        ("reasoning", "web 90 file 60 terminal 20"),
        ("science", "web 94 terminal 94 file 94 vision 65 browser 50 image_gen 15"),
        ("safe", "web 80 browser 70 vision 60 image_gen 60"),
        ("development", "terminal 80 file 80 web 30 vision 10"),
        ("minimal", "web 100"),
        ("terminal_only", "terminal 100 file 100"),
        ("terminal_web", "terminal 100 file 100 web 100"),
        ("browser_use", "browser 100 web 80 vision 70"),
        ("browser_only", "browser 100"),
        ("browser_tasks", "browser 97 terminal 15 vision 12"),
        ("mixed_tasks", "browser 92 terminal 92 file 92 web 35 vision 15 image_gen 15"),
        ("terminal_tasks", "terminal 97 file 97 web 97 browser 75 vision 50 image_gen 10"),
    ],
)
def test_the_percentages_are_those_of_the_reference(name: str, percents: str) -> None:
    words = percents.split()
    assert dict(DISTRIBUTIONS[name]) == dict(zip(words[::2], map(int, words[1::2]), strict=True))


@pytest.mark.parametrize("name", ["science", "balanced", "browser_tasks"])
def test_each_toolset_comes_as_often_as_its_percentage(name: str) -> None:
    draws = [sample(name, seed_parts=(42, "run", row, 0), configured={}) for row in range(DRAWS)]
    percents = DISTRIBUTIONS[name]
    none_wins = prod(1 - percent / 100 for percent in percents.values())
    for toolset, percent in percents.items():
        forced = none_wins if toolset == max(percents, key=lambda name: percents[name]) else 0.0
        expected = percent / 100 + forced
        share = sum(toolset in draw for draw in draws) / DRAWS
        assert abs(share - expected) < 5 * (expected * (1 - expected) / DRAWS) ** 0.5


def test_the_coins_of_one_sample_are_independent() -> None:
    own = {"two": {"web": 50, "file": 50, "todo": 100}}
    draws = [sample("two", seed_parts=(row,), configured=own) for row in range(DRAWS)]
    both = sum({"web", "file"} <= set(draw) for draw in draws) / DRAWS
    assert abs(both - 0.25) < 0.025


def test_a_certain_toolset_always_comes_and_an_impossible_one_never() -> None:
    own = {"sure": {"web": 0, "file": 100}}
    assert {sample("sure", seed_parts=(row,), configured=own) for row in range(1000)} == {("file",)}


def test_a_draw_that_wins_nothing_gets_the_most_probable_toolset() -> None:
    own = {"rare": {"web": 1, "todo": 2, "file": 2}}
    draws = [sample("rare", seed_parts=(row,), configured=own) for row in range(2000)]
    assert all(draws)
    assert sum(draw == ("todo",) for draw in draws) > 1800


def test_draws_are_pinned_for_all_time() -> None:
    assert [sample("science", seed_parts=(42, "run", row, 0), configured={}) for row in range(4)] == [
        ("web", "terminal", "file", "vision", "browser"),
        ("web", "terminal", "file", "vision", "browser", "image_gen"),
        ("web", "terminal", "file", "browser"),
        ("web", "terminal", "file", "vision", "browser", "image_gen"),
    ]
    assert sample("balanced", seed_parts=(1,), configured={}) != sample(
        "balanced", seed_parts=("1",), configured={}
    )


def test_another_process_with_another_hash_seed_draws_the_same() -> None:
    program = (
        "from hermes.tools.distributions import sample\n"
        "print([sample('balanced', seed_parts=('é', row), configured={}) for row in range(50)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    here = [sample("balanced", seed_parts=("é", row), configured={}) for row in range(50)]
    assert outputs == {f"{here}\n"}


def test_an_own_distribution_replaces_its_namesake() -> None:
    assert resolve("minimal", {"minimal": {"todo": 100}}) == {"todo": 100}
    assert sample("minimal", seed_parts=(1,), configured={"minimal": {"todo": 100}}) == ("todo",)


def test_an_unknown_distribution_is_a_usage_error_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="no such distribution: 'reserch'") as caught:
        sample("reserch", seed_parts=(1,), configured={})
    assert "research" in caught.value.hint


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"mine": {"wbe": 50}}, r"distributions\.mine: no such toolset: 'wbe'"),
        ({"mine": {"web": 101}}, r"distributions\.mine\.web is 101"),
        ({"mine": {"web": -1, "file": 5}}, r"distributions\.mine\.web is -1"),
        ({"mine": {}}, "gives no toolset a chance"),
        ({"mine": {"web": 0}}, "gives no toolset a chance"),
    ],
)
def test_a_bad_own_distribution_is_refused_by_key(own: dict[str, dict[str, int]], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        sample("mine", seed_parts=(1,), configured=own)
    with pytest.raises(ConfigError, match=reason):
        available(own)


def test_a_broken_own_distribution_does_not_stop_another_from_being_used() -> None:
    assert sample("minimal", seed_parts=(1,), configured={"mine": {"wbe": 50}}) == ("web",)


def test_of_the_default_distribution_a_bare_machine_lacks_only_what_needs_a_model_or_a_browser() -> None:
    from hermes.config.settings import Settings
    from hermes.tools.registry import unusable_toolsets

    reasons = unusable_toolsets(DISTRIBUTIONS["default"], Settings(), {})
    assert {"vision", "image_gen"} <= set(reasons) <= {"vision", "image_gen", "browser"}
    assert "media.vision_model" in reasons["vision"] and "media.image_model" in reasons["image_gen"]
