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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.core import Usage
from hermes.errors import LimitError
from hermes.models.prices import cost_usd

if TYPE_CHECKING:
    from hermes.config.settings import PriceSettings


@dataclass(slots=True)
class Reservation:
    """One call in flight; `spend` says what it came to, and a call that failed came to nothing."""

    tokens: int = 0
    cost_usd: float | None = 0.0

    def spend(self, usage: Usage, cost_usd: float | None) -> None:
        self.tokens = usage.total
        self.cost_usd = cost_usd


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
    ) -> Iterator[Reservation]:
        """Around one request: checks, reserves, and books what was spent.

        `completion_tokens` is the longest the answer can be, None if it has no bound.
        """
        self.check(model, price)
        worst = Usage(input_tokens=prompt_tokens, output_tokens=completion_tokens or 0)
        tokens, usd = worst.total, cost_usd(worst, price)
        self.calls += 1
        self._reserved_tokens += tokens
        self._reserved_usd += usd or 0.0
        spent = Reservation()
        try:
            yield spent
        finally:
            self._reserved_tokens -= tokens
            self._reserved_usd -= usd or 0.0
            self.tokens += spent.tokens
            known = self.cost_usd is not None and spent.cost_usd is not None
            self.cost_usd = (self.cost_usd or 0.0) + (spent.cost_usd or 0.0) if known else None


_RAISE_IT = "Raise the limit to go on; what was done so far is kept."
