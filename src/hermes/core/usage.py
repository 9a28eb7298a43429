"""The tokens that a model call consumed, in the five counters that providers bill separately."""

from __future__ import annotations

from dataclasses import dataclass

from hermes.core.json import JSONObject


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. The five are disjoint: `total` is their sum."""

    input_tokens: int = 0
    """Prompt tokens billed at the full rate."""
    cached_input_tokens: int = 0
    """Prompt tokens read from the provider's cache."""
    cache_write_tokens: int = 0
    """Prompt tokens written to the provider's cache."""
    output_tokens: int = 0
    """Visible completion tokens."""
    reasoning_tokens: int = 0
    """Hidden thinking tokens, billed as output."""

    @property
    def prompt(self) -> int:
        return self.input_tokens + self.cached_input_tokens + self.cache_write_tokens

    @property
    def completion(self) -> int:
        return self.output_tokens + self.reasoning_tokens

    @property
    def total(self) -> int:
        return self.prompt + self.completion

    def __add__(self, usage: Usage) -> Usage:
        return Usage(
            self.input_tokens + usage.input_tokens,
            self.cached_input_tokens + usage.cached_input_tokens,
            self.cache_write_tokens + usage.cache_write_tokens,
            self.output_tokens + usage.output_tokens,
            self.reasoning_tokens + usage.reasoning_tokens,
        )

    def to_json(self) -> JSONObject:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: JSONObject) -> Usage:
        return cls(**data)
