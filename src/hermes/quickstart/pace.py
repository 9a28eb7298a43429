"""How long a recipe takes on this machine.

The engine is timed on a fixed workload; the rest is arithmetic of the recipes, whose coefficients were
measured with whole acts on two cores (docs/quickstart.md, docs/feedback.md). The estimate assumes an
otherwise idle machine, and can be off by a third.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol, TypeVar

from hermes.core.clock import duration
from hermes.errors import HermesError
from hermes.serving.fetch import fetch

_PROMPTS, _PROMPT_TOKENS, _NEW_TOKENS = 8, 128, 8
_IDS = range(20, 240)
"""Token ids that every vocabulary has."""
_PATIENCE_S = 300.0


class Cost(NamedTuple):
    """Seconds of one rollout or row: a constant part, and one that is proportional to the pace."""

    fixed_s: float
    per_pace: float

    def at(self, pace_s: float) -> float:
        return self.fixed_s + self.per_pace * pace_s


class PacedRecipe(Protocol):
    """A recipe that knows how long it takes."""

    def estimate_s(self, pace_s: float) -> float:
        """How long the whole recipe takes at this pace."""

    @property
    def size(self) -> str:
        """How much it does, in words."""


Recipe = TypeVar("Recipe", bound=PacedRecipe)


def measure_pace(engine_url: str) -> float:
    """Seconds that the engine takes for 8 prompts of 128 tokens and 8 sampled tokens each.

    The first pass of a shape chooses kernels and maps memory. It took up to five times as long as the next
    one, so it is not measured.
    """
    _sample(engine_url, offset=0)
    began_s = time.perf_counter()
    _sample(engine_url, offset=_PROMPTS)
    return time.perf_counter() - began_s


def announce(recipe: PacedRecipe, pace_s: float) -> str:
    """How long the recipe takes."""
    expected = minutes(recipe.estimate_s(pace_s))
    return f"   about {expected} in all on this machine, if it has nothing else to do: {recipe.size}"


def minutes(seconds: float) -> str:
    """Rounded as an estimate deserves."""
    return duration(seconds) if seconds < 90 else f"{round(seconds / 60)} minutes"


def _sample(engine_url: str, offset: int) -> None:
    """Samples prompts that differ from their first token on, so that none has a cached prefix."""
    ids = [
        [_IDS[(offset + number + 31 * position) % len(_IDS)] for position in range(_PROMPT_TOKENS)]
        for number in range(_PROMPTS)
    ]
    params = {"max_new_tokens": _NEW_TOKENS, "temperature": 1.0}
    body = {"input_ids": ids, "sampling_params": params}
    try:
        fetch(f"{engine_url}/generate", body, timeout_s=_PATIENCE_S)
    except OSError as error:
        raise HermesError(f"the engine at {engine_url} does not sample: {error}", "see its log") from error
