"""The statistics of several workers as those of one engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from hermes.engine.info import EngineStats

_COUNTS = ("prompt_tokens", "cached_tokens", "sampled_tokens", "sampling_s", "training_s")


def no_stats() -> EngineStats:
    return EngineStats(**{field.name: 0 for field in fields(EngineStats)})


def add_stats(parts: Sequence[EngineStats]) -> EngineStats:
    return EngineStats(
        **{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(EngineStats)}
    )


def only_counts(stats: EngineStats) -> EngineStats:
    """What a worker that is gone has done; what it held is gone too."""
    return replace(no_stats(), **{name: getattr(stats, name) for name in _COUNTS})
