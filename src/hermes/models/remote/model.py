"""A model on an endpoint, with a price and a budget: the base of chat and completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from hermes.core import JSONObject, Sampling, Usage
from hermes.models.budget import Budget, Spent
from hermes.models.remote import wire
from hermes.models.remote.endpoint import Endpoint
from hermes.models.remote.retry import OnRetry
from hermes.models.usage import cost_usd, read_usage, reported_cost_usd

if TYPE_CHECKING:
    from hermes.config.providers import ModelTarget
    from hermes.config.settings import PriceSettings

T = TypeVar("T")


class RemoteModel:
    def __init__(
        self, target: ModelTarget, price: PriceSettings | None = None, budget: Budget | None = None
    ) -> None:
        self._target = target
        self._price = price
        self._budget = budget or Budget()
        self._endpoint = Endpoint(target)
        self._dialect = wire.dialect_for(target.base_url, send_reasoning=target.settings.send_reasoning)

    @property
    def name(self) -> str:
        """As the user names it: provider/model."""
        return self._target.name

    async def close(self) -> None:
        await self._endpoint.close()

    def _sampling(self, sampling: Sampling) -> Sampling:
        """With the provider's configured extra fields, so that the record contains them too."""
        return wire.with_extra_body(sampling, self._target.settings.extra_body)

    async def _call(
        self,
        attempt: Callable[[Spent], Awaitable[T]],
        prompt_tokens: int,
        sampling: Sampling,
        timeout_s: float | None,
        on_retry: OnRetry | None = None,
    ) -> tuple[T, int]:
        """The first successful result, and the number of attempts; each attempt counts towards the budget."""

        async def attempt_within_budget() -> T:
            with self._budget.reserve(self.name, self._price, prompt_tokens, sampling.max_tokens) as spent:
                return await attempt(spent)

        return await self._endpoint.run(attempt_within_budget, timeout_s, on_retry)

    def _bill(self, raw: JSONObject) -> tuple[Usage, float | None]:
        """Usage and cost of a response; a cost that the server reports takes precedence over our prices."""
        usage, reported = read_usage(raw), reported_cost_usd(raw)
        if reported is not None or usage is None:
            return usage or Usage(), reported
        return usage, cost_usd(usage, self._price)
