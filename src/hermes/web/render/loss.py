"""Which parts of an exported row carry loss, by the rule of each dataset type, before anything is written.

Language modelling: the model's turns, unless the row excludes one (`weight: 0`, `train: false`). Preference
rows: the completions, never the prompt. Rows of token ids: their mask. Records for other programs
(`record`, `atif`, `sts`) have no view. The chat template adds control tokens that are not shown here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from hermes.core import JSONObject

NO_TRAINING_DATA = frozenset({"record", "atif", "sts"})
_MODEL_ROLES = frozenset({"assistant", "gpt"})
_SIDES = (
    ("prompt", False),
    ("completion", True),
    ("chosen", True),
    ("rejected", True),
    ("preferred_output", True),
    ("non_preferred_output", True),
)
_SPAN_CHARS = 1500
_MAX_SPANS = 60


class LossSpan(NamedTuple):
    label: str
    """The role, or the field of the row."""
    text: str
    in_loss: bool


@dataclass(frozen=True, slots=True)
class LossView:
    spans: tuple[LossSpan, ...]
    """Empty for a row of token ids."""
    trained: int
    total: int
    unit: str
    """The unit of `trained` and `total`: characters, or tokens."""


def loss_view(format_name: str, row: JSONObject) -> LossView | None:
    """None for a row that no trainer reads."""
    if format_name in NO_TRAINING_DATA:
        return None
    mask = row.get("mask")
    if isinstance(mask, list) and "input_ids" in row:
        return LossView((), sum(map(bool, mask)), len(mask), "tokens")
    spans = [span for span in _spans(row) if span.text]
    if not any(span.in_loss for span in spans):
        return None
    trained = sum(len(span.text) for span in spans if span.in_loss)
    total = sum(len(span.text) for span in spans)
    clipped = tuple(span._replace(text=_clipped(span.text)) for span in spans[:_MAX_SPANS])
    return LossView(clipped, trained, total, "characters")


def _spans(row: JSONObject) -> Iterator[LossSpan]:
    turns: Any = row.get("messages") or row.get("conversations")
    if isinstance(turns, list):
        yield from _turns(turns, trained_roles=_MODEL_ROLES)
        return
    source: Any = row.get("input")
    if isinstance(source, dict):
        yield from _turns(source.get("messages") or (), trained_roles=frozenset())
    for name, in_loss in _SIDES:
        side: Any = row.get(name)
        if isinstance(side, str):
            yield LossSpan(name, side, in_loss)
        elif isinstance(side, list):
            yield from _turns(side, _MODEL_ROLES if in_loss else frozenset(), name if in_loss else "")
    completions: Any = row.get("completions")
    if isinstance(completions, list):
        yield from (LossSpan(f"step {number}", str(text), True) for number, text in enumerate(completions, 1))


def _turns(turns: Iterable[Any], trained_roles: frozenset[str], side: str = "") -> Iterator[LossSpan]:
    for turn in turns:
        role = str(turn.get("role") or turn.get("from"))
        excluded = turn.get("weight") == 0 or turn.get("train") is False
        label = f"{side}: {role}" if side else role
        yield LossSpan(label, _turn_text(turn), role in trained_roles and not excluded)


def _turn_text(turn: JSONObject) -> str:
    parts: list[str] = []
    for name in ("reasoning_content", "thinking", "content", "value"):
        value: Any = turn.get(name)
        if isinstance(value, str):
            parts.append(value)
        elif value is not None:
            parts.append(json.dumps(value, ensure_ascii=False))
    calls: Any = turn.get("tool_calls") or ()
    parts.extend(json.dumps(call.get("function", call), ensure_ascii=False) for call in calls)
    return "\n".join(part for part in parts if part)


def _clipped(text: str) -> str:
    if len(text) <= _SPAN_CHARS:
        return text
    return f"{text[:_SPAN_CHARS]} … {len(text) - _SPAN_CHARS:,} characters more"
