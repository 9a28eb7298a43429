from __future__ import annotations

import asyncio

import pytest

from hermes.core import Usage
from hermes.errors import LimitError, ProviderError
from hermes.models.budget import Budget
from hermes.models.open import MeteredChat
from tests.fakes.provider import FakeProvider, delayed, status, text
from tests.models.clients import PRICE, asking, chat_on, completions_on, limited_to

USAGE = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
COST = 100 * 1e-6 + 100 * 10e-6


def limit_of(error: pytest.ExceptionInfo[LimitError]) -> str:
    return error.value.limit


def spend(budget: Budget, usage: Usage, cost: float | None = None) -> None:
    with budget.reserve("lab/fake", PRICE, 0, 0) as spent:
        spent.book(usage, cost, "")


def test_without_limits_everything_is_counted_and_nothing_refused() -> None:
    budget = Budget()
    spend(budget, Usage(5, output_tokens=5), 0.5)
    spend(budget, Usage(1), 0.25)
    assert (budget.calls, budget.tokens, budget.cost_usd) == (2, 11, 0.75)


def test_one_unknown_cost_makes_the_total_unknown() -> None:
    budget = Budget()
    spend(budget, Usage(1), 0.5)
    spend(budget, Usage(1), None)
    spend(budget, Usage(1), 0.5)
    assert budget.cost_usd is None


def test_each_limit_refuses_by_its_own_name() -> None:
    for budget, name in (
        (Budget(max_calls=1), "max_calls"),
        (Budget(max_tokens=10), "max_tokens"),
        (Budget(max_cost_usd=0.5), "max_cost"),
    ):
        spend(budget, Usage(10), 0.5)
        with pytest.raises(LimitError) as error:
            budget.check("lab/fake", PRICE)
        assert limit_of(error) == name


def test_a_cost_limit_refuses_an_unknown_price_at_once_and_says_how_to_state_it() -> None:
    with pytest.raises(LimitError, match="price of lab/fake is unknown") as error:
        Budget(max_cost_usd=1).check("lab/fake", None)
    assert limit_of(error) == "max_cost"
    assert 'prices: {"lab/fake": {input: …, output: …}}' in error.value.hint


def test_what_calls_in_flight_may_spend_counts_before_they_spend_it() -> None:
    budget = Budget(max_tokens=1000, max_cost_usd=1.0)
    with budget.reserve("lab/fake", PRICE, 400, 600) as spent:
        with pytest.raises(LimitError, match="1000 reserved"):
            budget.check("lab/fake", PRICE)
        spent.book(Usage(400, output_tokens=10), 0.1, "")
    budget.check("lab/fake", PRICE)
    assert budget.tokens == 410


def test_a_failed_request_counts_as_a_call_and_returns_what_it_reserved() -> None:
    budget = Budget(max_calls=2, max_tokens=100)
    with pytest.raises(ProviderError), budget.reserve("lab/fake", PRICE, 99, 1):
        raise ProviderError("down")
    assert (budget.calls, budget.tokens, budget.cost_usd) == (1, 0, 0.0)
    budget.check("lab/fake", PRICE)


def test_a_server_that_reports_no_usage_is_charged_an_estimate() -> None:
    budget = Budget()
    with budget.reserve("lab/fake", PRICE, 50, None) as spent:
        spent.book(Usage(), None, "x" * 30)
    assert budget.tokens == 60
    assert budget.cost_usd == pytest.approx(50e-6 + 100e-6)


async def test_the_call_limit_stops_before_the_request() -> None:
    with FakeProvider(lambda body: text("hi")) as provider:
        chat = chat_on(provider, budget=Budget(max_calls=2))
        await chat.complete(asking())
        await chat.complete(asking())
        with pytest.raises(LimitError) as error:
            await chat.complete(asking())
        assert limit_of(error) == "max_calls"
        assert len(provider.requests) == 2


async def test_the_token_limit_stops_before_the_request() -> None:
    with FakeProvider(lambda body: text("hi", usage=USAGE)) as provider:
        chat = chat_on(provider, budget=Budget(max_tokens=400))
        await chat.complete(asking())
        await chat.complete(asking())
        with pytest.raises(LimitError) as error:
            await chat.complete(asking())
        assert limit_of(error) == "max_tokens"
        assert len(provider.requests) == 2


async def test_the_cost_limit_stops_before_the_request() -> None:
    with FakeProvider(lambda body: text("hi", usage=USAGE)) as provider:
        budget = Budget(max_cost_usd=2 * COST)
        chat = chat_on(provider, price=PRICE, budget=budget)
        await chat.complete(asking())
        await chat.complete(asking())
        with pytest.raises(LimitError) as error:
            await chat.complete(asking())
        assert limit_of(error) == "max_cost"
        assert len(provider.requests) == 2
        assert budget.cost_usd == pytest.approx(2 * COST)


async def test_a_cost_limit_with_an_unknown_price_sends_nothing() -> None:
    with FakeProvider(lambda body: text("hi")) as provider:
        with pytest.raises(LimitError):
            await chat_on(provider, budget=Budget(max_cost_usd=1)).complete(asking())
        assert provider.requests == []


async def test_retries_are_requests_and_count_against_the_call_limit() -> None:
    with FakeProvider(lambda body: status(500)) as provider:
        with pytest.raises(LimitError) as error:
            await chat_on(provider, budget=Budget(max_calls=1)).complete(asking())
        assert limit_of(error) == "max_calls"
        assert len(provider.requests) == 1


async def test_concurrent_callers_make_exactly_as_many_calls_as_allowed() -> None:
    with FakeProvider(lambda body: delayed(0.05, text("hi"))) as provider:
        chat = chat_on(provider, budget=Budget(max_calls=7))
        results = await asyncio.gather(*(chat.complete(asking()) for _ in range(20)), return_exceptions=True)
        assert sum(isinstance(result, LimitError) for result in results) == 13
        assert len(provider.requests) == 7


async def test_with_bounded_answers_concurrent_callers_overshoot_by_at_most_one_call() -> None:
    with FakeProvider(lambda body: delayed(0.02, text("hi", usage=USAGE))) as provider:
        budget = Budget(max_tokens=1000)
        chat = chat_on(provider, budget=budget)
        request = asking("word " * 60, sampling=limited_to(100))
        await asyncio.gather(*(chat.complete(request) for _ in range(30)), return_exceptions=True)
        assert len(provider.requests) >= 4
        assert budget.tokens <= 1000 + 200


async def test_several_models_can_share_one_budget() -> None:
    with FakeProvider(lambda body: text("hi")) as one, FakeProvider(lambda body: text("hi")) as two:
        budget = Budget(max_calls=1)
        await chat_on(one, budget=budget).complete(asking())
        with pytest.raises(LimitError):
            await chat_on(two, budget=budget).complete(asking())
        with pytest.raises(LimitError):
            await completions_on(two, budget=budget).complete_tokens([1], limited_to(1))
        assert two.requests == []


async def test_a_model_that_knows_no_budget_is_put_under_one() -> None:
    with FakeProvider(lambda body: text("hi", usage=USAGE)) as provider:
        budget = Budget(max_tokens=200)
        chat = MeteredChat(chat_on(provider), None, budget)
        reply = await chat.complete(asking())
        assert chat.name == reply.call.model == "lab/fake"
        assert budget.tokens == reply.call.usage.total
        with pytest.raises(LimitError):
            await chat.complete(asking())
        assert len(provider.requests) == 1
        await chat.close()
