"""What a run gave, and the first difference between two runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PER_SEQUENCE = (
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "inference_logprobs",
    "messages",
    "overrides",
)
_REQUEST = ("messages", "prompt", "n", "max_tokens", "temperature", "top_p", "stop", "input_ids")


@dataclass(frozen=True)
class Outcome:
    groups: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Any]
    """Of an evaluation."""
    requests: Sequence[Mapping[str, Any]]
    failure: str
    mode: str

    @property
    def worked(self) -> bool:
        return bool(self.metrics) if self.mode == "evaluate" else bool(self.groups)


def describe(outcome: Outcome) -> str:
    """`3 groups, 12 sequences`, or `4 metrics`; a dash where nothing came."""
    if not outcome.worked:
        return "—"
    if outcome.mode == "evaluate":
        return f"{len(outcome.metrics)} metrics"
    sequences = sum(len(group["tokens"]) for group in outcome.groups)
    groups = "1 group" if len(outcome.groups) == 1 else f"{len(outcome.groups)} groups"
    return f"{groups}, {sequences} sequences"


def difference(original: Outcome, hermes: Outcome) -> str:
    """The first difference in words; empty where there is none."""
    if original.mode == "evaluate":
        return _metric_difference(original.metrics, hermes.metrics) or _request_difference(original, hermes)
    if len(original.groups) > len(hermes.groups):
        return f"{len(original.groups)} groups and {len(hermes.groups)}"
    for index, (first, second) in enumerate(zip(original.groups, hermes.groups, strict=False)):
        if len(first["tokens"]) != len(second["tokens"]):
            return f"group {index}: {len(first['tokens'])} sequences and {len(second['tokens'])}"
        for field in _PER_SEQUENCE:
            if _column(first, field) != _column(second, field):
                return f"group {index}: {field} differ"
        # Hermes adds the environment's name when it serves.
        overrides = second.get("group_overrides") or {}
        if not (first.get("group_overrides") or {}).items() <= overrides.items():
            return f"group {index}: group_overrides differ"
        if _rows(first) != _rows(second):
            return f"group {index}: the same fields belong to other sequences"
    # The original counts a group that it rejects as written; Hermes goes on until all are written.
    same_work = original.mode == "process" and len(original.groups) == len(hermes.groups)
    return _request_difference(original, hermes) if same_work else ""


def _column(group: Mapping[str, Any], field: str) -> Any:
    """The field of all sequences; they are sorted, since the answers of a group arrive in any order."""
    values = group.get(field)
    if not values or all(value is None for value in values):
        return None
    return sorted(json.dumps(value) for value in values)


def _rows(group: Mapping[str, Any]) -> list[str]:
    """The sequences, each with all its fields."""
    columns = [group[field] for field in _PER_SEQUENCE if _column(group, field) is not None]
    return sorted(json.dumps(row) for row in zip(*columns, strict=False))


def _metric_difference(original: Mapping[str, Any], hermes: Mapping[str, Any]) -> str:
    for name in sorted({*original, *hermes}):
        first, second = original.get(name), hermes.get(name)
        if first == second or "time" in name:
            continue
        if isinstance(first, dict) and isinstance(second, dict):
            if inside := _metric_difference(first, second):
                return inside
            continue
        numbers = isinstance(first, int | float) and isinstance(second, int | float)
        if not numbers or not math.isclose(first, second, rel_tol=1e-9):
            return f"metric {name}: {first} and {second}"
    return ""


def _request_difference(original: Outcome, hermes: Outcome) -> str:
    first, second = _requests(original), _requests(hermes)
    if first == second:
        return ""
    if len(first) != len(second):
        return f"{len(first)} requests to the model and {len(second)}"
    pairs = (
        (json.loads(mine), json.loads(yours))
        for mine, yours in zip(first, second, strict=True)
        if mine != yours
    )
    mine, yours = next(pairs)
    names = [name for name, left, right in zip(_REQUEST, mine, yours, strict=True) if left != right]
    return f"requests to the model differ in {', '.join(names)}"


def _requests(outcome: Outcome) -> list[str]:
    """What was sent, without the order (requests of one group are sent at once) and the original's probes."""
    return sorted(
        json.dumps([request.get(name, 1 if name == "n" else None) for name in _REQUEST])
        for request in outcome.requests
        if not _is_probe(request)
    )


def _is_probe(request: Mapping[str, Any]) -> bool:
    """The original asks for one token after `hi` every second, as its health check."""
    beginning = request.get("prompt") or request.get("messages")
    return request.get("max_tokens") == 1 and beginning in ("hi", [{"role": "user", "content": "hi"}])
