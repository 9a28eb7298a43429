"""A comparison of models as one HTML page: no script, no request to anywhere, readable in light and dark.

The output of models, tasks and tools is only text here: jinja2 escapes it, and the page's content security
policy forbids it to load or run anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import groupby

from hermes.batch.compare.attempts import Divergence
from hermes.batch.compare.scores import Comparison, ModelPair, TaskLine
from hermes.core import JSONObject, Message
from hermes.core.stats import Interval
from hermes.safety.text import clip, printable

_MAX_DIVERGENCES = 200
_MAX_MESSAGES = 6
"""Shown on each side of a divergence."""
_MAX_CHARS = 2_000
"""The longest text that a divergence shows."""
_PROMPT_CHARS = 160


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the whole comparison, shown at the top of the page."""

    title: str
    dataset: str
    samples: int
    """Per task and model."""
    scoring: str | None
    """How rewards were given; None if they were not."""
    prompts: dict[str, str]
    """Task → its text."""


def render(facts: Facts, comparison: Comparison, divergences: Sequence[Divergence]) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "score": score_text,
        "brief": _brief,
        "money": _money,
        "number": _number,
        "signed": _signed,
    }
    source = resources.files("hermes.batch.compare").joinpath("report.html.jinja").read_text("utf-8")
    score_range = _score_range(comparison)
    lines = [(_differs(line), _task(line, facts, score_range)) for line in comparison.tasks]
    return environment.from_string(source).render(
        facts=facts,
        comparison=comparison,
        axis=_axis(comparison),
        differing=[line for differs, line in lines if differs],
        agreeing=[line for differs, line in lines if not differs],
        divergences=_by_pair(divergences[:_MAX_DIVERGENCES], facts),
        n_divergences=len(divergences),
        n_shown=min(len(divergences), _MAX_DIVERGENCES),
        bars=[_bar(pair) for pair in comparison.pairs],
    )


def score_text(value: float | None, binary: bool) -> str:
    """A pass rate in percent, any other score as a number."""
    if value is None:
        return "–"
    return f"{value:.1%}" if binary else f"{value:.3g}"


def _brief(value: float | None, binary: bool) -> str:
    return f"{value:.0%}" if binary and value is not None else score_text(value, binary)


def _axis(comparison: Comparison) -> JSONObject | None:
    """The positions of scores and intervals on a common scale, in percent of its width."""
    if not comparison.graded:
        return None
    intervals = [score.interval for score in comparison.scores if score.interval is not None]
    low = min(interval.low for interval in intervals)
    high = max(interval.high for interval in intervals)
    if comparison.binary:
        low, high = 0.0, 1.0
    width = high - low or 1.0

    def position(value: float) -> float:
        return round(100 * (value - low) / width, 2)

    def mark(score: float | None, interval: Interval | None) -> JSONObject | None:
        if score is None or interval is None:
            return None
        left = position(interval.low)
        return {"at": position(score), "left": left, "width": round(position(interval.high) - left, 2)}

    return {
        "low": low,
        "high": high,
        "marks": [mark(score.score, score.interval) for score in comparison.scores],
    }


def _bar(pair: ModelPair) -> JSONObject:
    total = pair.wins + pair.losses + pair.ties or 1
    return {
        "pair": pair,
        "wins": 100 * pair.wins / total,
        "ties": 100 * pair.ties / total,
        "losses": 100 * pair.losses / total,
    }


def _differs(line: TaskLine) -> bool:
    return len(set(line.scores.values())) > 1


def _score_range(comparison: Comparison) -> tuple[float, float]:
    """The lowest and highest score: 0 and 1, or beyond if a score is outside."""
    scores = [score for line in comparison.tasks for score in line.scores.values() if score is not None]
    return min([0.0, *scores]), max([1.0, *scores])


def _task(line: TaskLine, facts: Facts, score_range: tuple[float, float]) -> JSONObject:
    """Each cell with its position in the score range, in percent, which sets its colour."""
    low, high = score_range
    cells = [
        {"score": score, "shade": None if score is None else round(100 * (score - low) / (high - low))}
        for score in line.scores.values()
    ]
    return {"key": printable(line.key), "prompt": _prompt(line.key, facts), "cells": cells}


def _by_pair(divergences: Sequence[Divergence], facts: Facts) -> list[JSONObject]:
    """Divergences grouped by pair of models; the input is sorted by pair."""
    groups = groupby(divergences, lambda divergence: (divergence.left_model, divergence.right_model))
    return [
        {"left": left, "right": right, "tasks": [_divergence(divergence, facts) for divergence in group]}
        for (left, right), group in groups
    ]


def _divergence(divergence: Divergence, facts: Facts) -> JSONObject:
    sides = [
        {
            "model": model,
            "attempt": attempt,
            "messages": [_message(message) for message in messages[:_MAX_MESSAGES]],
            "more": max(0, len(messages) - _MAX_MESSAGES),
        }
        for model, attempt, messages in (
            (divergence.left_model, divergence.left, divergence.difference.left),
            (divergence.right_model, divergence.right, divergence.difference.right),
        )
    ]
    return {
        "key": printable(divergence.key),
        "prompt": _prompt(divergence.key, facts),
        "shared": divergence.difference.shared,
        "sides": sides,
    }


def _message(message: Message) -> JSONObject:
    return {
        "role": message.role.value,
        "name": printable(message.name or ""),
        "reasoning": _text(message.reasoning or ""),
        "content": _text(message.content),
        "calls": [f"{printable(call.name)} {_text(call.arguments)}" for call in message.tool_calls],
    }


def _text(text: str) -> str:
    return printable(clip(text, _MAX_CHARS))


def _prompt(key: str, facts: Facts) -> str:
    return clip(" ".join(printable(facts.prompts.get(key, "")).split()), _PROMPT_CHARS)


def _money(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:.4f}" if usd < 1 else f"${usd:,.2f}"


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _signed(value: float | None, binary: bool) -> str:
    if value is None:
        return "–"
    return f"{100 * value:+.1f} pts" if binary else f"{value:+.3g}"
