"""Hard limits on calls, tokens and cost, checked before a request is sent.

Each call reserves the most it may cost. A call starts only while the limit exceeds what was spent plus what
the calls in flight have reserved, so concurrent callers overshoot by at most one call, or, where the length
of an answer is unbounded, by at most one call each. Failed attempts count as calls: they were requests.

A budget belongs to one event loop and is not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hermes.core import Usage
from hermes.errors import LimitError
from hermes.models.usage import cost_usd, estimate_tokens

if TYPE_CHECKING:
    from hermes.config.settings import PriceSettings


class Spent:
    """The tokens and the cost of one request; zero until `book` is called."""

    def __init__(self, prompt_tokens: int, price: PriceSettings | None) -> None:
        self.tokens = 0
        self.cost_usd: float | None = 0.0
        self._prompt_tokens = prompt_tokens
        self._price = price

    def book(self, usage: Usage, cost: float | None, answer_text: str) -> None:
        """Records the usage that the server reported, or an estimate from the answer's text."""
        if not usage.total:
            usage = Usage(self._prompt_tokens, output_tokens=estimate_tokens(answer_text))
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
        """Requests that were sent or are in flight."""
        self.tokens = 0
        self.cost_usd: float | None = 0.0
        """None as soon as one call's cost is unknown."""
        self._reserved_tokens = 0
        self._reserved_usd = 0.0

    def check(self, model: str, price: PriceSettings | None) -> None:
        """LimitError if a limit is reached, so that no further call of `model` may start."""
        if self.max_calls is not None and self.calls >= self.max_calls:
            raise LimitError(
                "max_calls", f"The limit of {self.max_calls} model calls is reached.", _RAISE_HINT
            )
        if self.max_tokens is not None and self.tokens + self._reserved_tokens >= self.max_tokens:
            spent = f"{self.tokens} used, {self._reserved_tokens} reserved by calls in flight"
            message = f"The limit of {self.max_tokens} tokens is reached ({spent})."
            raise LimitError("max_tokens", message, _RAISE_HINT)
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
            raise LimitError("max_cost", f"The cost limit of ${limit:g} is reached ({spent}).", _RAISE_HINT)

    @contextmanager
    def reserve(
        self, model: str, price: PriceSettings | None, prompt_tokens: int, completion_tokens: int | None
    ) -> Iterator[Spent]:
        """Wraps one request: checks the limits, reserves, and records what was spent.

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
            cost_known = self.cost_usd is not None and spent.cost_usd is not None
            self.cost_usd = (self.cost_usd or 0.0) + (spent.cost_usd or 0.0) if cost_known else None


_RAISE_HINT = "Raise the limit to continue; what was done so far is kept."
