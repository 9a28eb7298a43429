"""Hard limits on calls, tokens and cost, kept before the money is spent.

Each call reserves what it may come to. A call starts only while something is left beside what was
spent and what the calls in flight have reserved, so several callers together overshoot by one call,
or, where the length of an answer has no bound, by at most one call per caller. Failed attempts count
as calls: they were requests.

A budget belongs to one event loop and is not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hermes.core import Usage
from hermes.errors import LimitError
from hermes.models.prices import cost_usd
from hermes.models.usage import estimate_tokens

if TYPE_CHECKING:
    from hermes.config.settings import PriceSettings


class Spent:
    """What one request came to; nothing, until it is told otherwise."""

    def __init__(self, prompt_tokens: int, price: PriceSettings | None) -> None:
        self.tokens = 0
        self.cost_usd: float | None = 0.0
        self._prompt_tokens = prompt_tokens
        self._price = price

    def book(self, usage: Usage, cost: float | None, answer: str) -> None:
        """Counts what the server reported; if it reported nothing, an estimate from the answer's text."""
        if not usage.total:
            usage = Usage(self._prompt_tokens, output_tokens=estimate_tokens(answer))
            cost = cost_usd(usage, self._price)
        self.tokens = usage.total
        self.cost_usd = cost


class Budget:
    """Limits on everything that is called through it; None means no limit."""

    def __init__(
        self, max_calls: int | None = None, max_tokens: int | None = None, max_cost_usd: float | None = None
    ) -> None:
        self.max_calls = max_calls
        self.max_tokens = max_tokens
        self.max_cost_usd = max_cost_usd
        self.calls = 0
        """Requests made or under way."""
        self.tokens = 0
        self.cost_usd: float | None = 0.0
        """None as soon as one call's cost is unknown."""
        self._reserved_tokens = 0
        self._reserved_usd = 0.0

    def check(self, model: str, price: PriceSettings | None) -> None:
        """LimitError if another call of `model` would start beyond a limit."""
        if self.max_calls is not None and self.calls >= self.max_calls:
            raise LimitError("max_calls", f"The limit of {self.max_calls} model calls is reached.", _RAISE_IT)
        if self.max_tokens is not None and self.tokens + self._reserved_tokens >= self.max_tokens:
            spent = f"{self.tokens} used, {self._reserved_tokens} reserved by calls in flight"
            message = f"The limit of {self.max_tokens} tokens is reached ({spent})."
            raise LimitError("max_tokens", message, _RAISE_IT)
        if self.max_cost_usd is not None:
            self._check_cost(self.max_cost_usd, model, price)

    def _check_cost(self, limit: float, model: str, price: PriceSettings | None) -> None:
        if price is None or self.cost_usd is None:
            raise LimitError(
                "max_cost",
                f"A cost limit of ${limit:g} is set, but the price of {model} is unknown.",
                f'State it in config.yaml, in US dollars per million tokens: prices: {{"{model}": '
                "{input: …, output: …}}",
            )
        if self.cost_usd + self._reserved_usd >= limit:
            spent = f"${self.cost_usd:.4f} spent, ${self._reserved_usd:.4f} reserved by calls in flight"
            raise LimitError("max_cost", f"The cost limit of ${limit:g} is reached ({spent}).", _RAISE_IT)

    @contextmanager
    def reserve(
        self, model: str, price: PriceSettings | None, prompt_tokens: int, completion_tokens: int | None
    ) -> Iterator[Spent]:
        """Around one request: checks, reserves, and books what was spent.

        `completion_tokens` is the longest the answer can be, None if it has no bound.
        """
        self.check(model, price)
        worst = Usage(input_tokens=prompt_tokens, output_tokens=completion_tokens or 0)
        tokens, usd = worst.total, cost_usd(worst, price)
        self.calls += 1
        self._reserved_tokens += tokens
        self._reserved_usd += usd or 0.0
        spent = Spent(prompt_tokens, price)
        try:
            yield spent
        finally:
            self._reserved_tokens -= tokens
            self._reserved_usd -= usd or 0.0
            self.tokens += spent.tokens
            known = self.cost_usd is not None and spent.cost_usd is not None
            self.cost_usd = (self.cost_usd or 0.0) + (spent.cost_usd or 0.0) if known else None


_RAISE_IT = "Raise the limit to go on; what was done so far is kept."
