from __future__ import annotations

import pytest

from hermes.config.settings import PriceSettings, Settings
from hermes.core import JSONObject, Message, Role, Usage
from hermes.models.usage import (
    cost_usd,
    estimate_prompt,
    estimate_tokens,
    price_of,
    read_usage,
    reported_cost_usd,
)

OPENAI = {
    "prompt_tokens": 100,
    "completion_tokens": 50,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
    "completion_tokens_details": {"reasoning_tokens": 40},
}


def test_the_five_counters_are_disjoint_and_sum_to_the_servers_total() -> None:
    usage = read_usage({"usage": OPENAI})
    assert usage == Usage(10, 60, 30, 10, 40)
    assert usage.total == 150


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(9, output_tokens=2)),
        (
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 4},
            Usage(5, 4, output_tokens=2),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 5,
            },
            Usage(0, 4, 5, 2),
        ),
        ({"prompt_tokens": 9, "completion_tokens": 7, "reasoning_tokens": 5}, Usage(9, 0, 0, 2, 5)),
    ],
)
def test_other_servers_names_for_the_counters_are_understood(usage: JSONObject, expected: Usage) -> None:
    assert read_usage({"usage": usage}) == expected


def test_thinking_counted_beside_the_completion_is_not_subtracted_from_it() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 35,
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    assert read_usage({"usage": usage}) == Usage(10, output_tokens=5, reasoning_tokens=20)


@pytest.mark.parametrize(
    "raw", [{}, {"usage": None}, {"usage": {}}, {"usage": "lots"}, {"usage": {"prompt_tokens": "9"}}]
)
def test_a_server_that_reports_nothing_gives_none(raw: JSONObject) -> None:
    assert read_usage(raw) is None


def test_a_reported_cost_is_taken_and_its_absence_is_none() -> None:
    assert reported_cost_usd({"usage": {"cost": 0.25}}) == 0.25
    assert reported_cost_usd({"usage": {"cost": 0}}) == 0.0
    assert reported_cost_usd({"usage": OPENAI}) is None
    assert reported_cost_usd({"usage": {"cost": True}}) is None


def test_each_counter_is_billed_at_its_own_rate_and_thinking_as_output() -> None:
    price = PriceSettings(input=1.0, output=10.0, cached_input=0.1, cache_write=2.0)
    million = 1_000_000
    assert cost_usd(Usage(million, million, million, million, million), price) == pytest.approx(23.1)


def test_cache_rates_default_to_the_input_rate() -> None:
    price = PriceSettings(input=3.0, output=0.0)
    assert cost_usd(Usage(1_000_000, 1_000_000, 1_000_000), price) == pytest.approx(9.0)


def test_an_unknown_price_costs_none_and_not_zero() -> None:
    assert cost_usd(Usage(1, 1, 1, 1, 1), None) is None
    assert price_of(Settings(), "openrouter/some/model") is None


def test_a_price_is_found_by_full_name_before_the_bare_name() -> None:
    full, bare = PriceSettings(input=1, output=1), PriceSettings(input=2, output=2)
    settings = Settings(prices={"openrouter/a/b": full, "a/b": bare})
    assert price_of(settings, "openrouter/a/b") == full
    assert price_of(settings, "vllm/a/b") == bare


def test_bundled_models_are_known_to_be_free() -> None:
    assert cost_usd(Usage(1000, output_tokens=1000), price_of(Settings(), "hermes/smollm2")) == 0.0


def test_estimates_grow_with_the_text_and_ignore_the_size_of_image_data() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("abcd") == 2
    assert estimate_tokens("\ud800") == 1
    small = Message(Role.USER, "look", images=("data:image/png;base64,A",))
    large = Message(Role.USER, "look", images=("data:image/png;base64," + "A" * 900_000,))
    assert (
        estimate_prompt([small], [])
        == estimate_prompt([large], [])
        > estimate_prompt([Message.user("look")], [])
    )
