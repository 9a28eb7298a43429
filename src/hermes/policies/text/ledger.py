"""Keeps everything that an improvement has paid for, on disk before it is used: scores and proposals.

A search is a function of its seed and of what it paid for. So one that was killed begins again, finds in the
ledger what it had, and pays only for what was in flight. Totals count each entry when it is first used, so
that a search that goes on stops where it would have stopped.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hermes.core import JSONObject, canonical_json, content_hash, parse_object
from hermes.core.texts import Texts
from hermes.disk.appendlog import AppendLog, read_lines
from hermes.errors import HermesError
from hermes.policies.text.signal import TaskScore, TextTask

_FILE = "paid.jsonl"


@dataclass
class Spending:
    """Calls and cost so far, and their limits. Mutable."""

    max_calls: int
    max_cost_usd: float | None = None
    calls: int = 0
    cost_usd: float = 0.0
    unknown_cost: bool = False

    def add(self, calls: int, cost_usd: float | None) -> None:
        self.calls += calls
        self.cost_usd += cost_usd or 0.0
        self.unknown_cost |= cost_usd is None

    @property
    def cost_reached(self) -> bool:
        return self.max_cost_usd is not None and self.cost_usd >= self.max_cost_usd

    @property
    def reached(self) -> bool:
        """Whether the search has to end."""
        return self.calls >= self.max_calls or self.cost_reached


@dataclass
class Ledger:
    """Everything that one improvement paid for. One process has it open."""

    folder: Path
    spending: Spending
    _scores: dict[tuple[str, str], TaskScore] = field(default_factory=dict)
    _proposals: dict[str, list[JSONObject]] = field(default_factory=dict)
    _used: set[tuple[str, str]] = field(default_factory=set)
    _taken: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        path = self.folder / _FILE
        try:
            lines = list(read_lines(path)) if path.exists() else []
        except OSError as error:
            raise HermesError(f"{path} cannot be read: {error}", "look at its permissions") from error
        for number, line in enumerate(lines, 1):
            try:
                self._read(parse_object(line))
            except (ValueError, KeyError, TypeError) as error:
                raise HermesError(
                    f"{path}:{number} is no entry of a ledger: {error}",
                    "remove that line; what it paid for is paid again",
                ) from error

    def _read(self, entry: JSONObject) -> None:
        if "task" in entry:
            self._scores[str(entry["texts"]), str(entry["task"])] = _score(entry["score"])
        else:
            answer, cost_usd = str(entry["answer"]), _cost(entry["cost_usd"])
            entries = self._proposals.setdefault(str(entry["prompt"]), [])
            entries.append({"answer": answer, "cost_usd": cost_usd})

    def score(self, texts: Texts, task: TextTask) -> TaskScore | None:
        key = (texts_key(texts), task.key)
        score = self._scores.get(key)
        if score is not None and key not in self._used:
            self._used.add(key)
            self.spending.add(score.calls, score.cost_usd)
        return score

    def keep_score(self, texts: Texts, task: TextTask, score: TaskScore) -> None:
        key = (texts_key(texts), task.key)
        self._append({"texts": key[0], "task": key[1], "score": asdict(score)})
        self._scores[key] = score

    def proposal(self, prompt: str) -> str | None:
        """The answer to this prompt that was not used yet; None if it has to be asked for."""
        key = content_hash(prompt)
        index, answers = self._taken[key], self._proposals.get(key, [])
        if index >= len(answers):
            return None
        self._taken[key] += 1
        self.spending.add(1, answers[index]["cost_usd"])
        return str(answers[index]["answer"])

    def keep_proposal(self, prompt: str, answer: str, cost_usd: float | None) -> None:
        entry: JSONObject = {"prompt": content_hash(prompt), "answer": answer, "cost_usd": cost_usd}
        self._append(entry)
        self._proposals.setdefault(entry["prompt"], []).append(entry)

    @property
    def scores(self) -> Sequence[TaskScore]:
        return tuple(self._scores.values())

    def _append(self, entry: JSONObject) -> None:
        path = self.folder / _FILE
        try:
            with AppendLog(path) as log:
                log.append([json.dumps(entry)])
        except OSError as error:
            raise HermesError(f"{path} cannot be written: {error}", "free the disk") from error


def _score(data: JSONObject) -> TaskScore:
    """TypeError or ValueError if it is none: a NaN would decide the search."""
    score = TaskScore(**data)
    if not math.isfinite(float(score.score)) or int(score.calls) < 0:
        raise ValueError(f"the score {score.score} of {score.calls} calls is none")
    return replace(score, cost_usd=_cost(score.cost_usd))


def _cost(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"the cost {value!r} is none")
    return float(value)


def texts_key(texts: Texts) -> str:
    return content_hash(canonical_json(dict(texts)))
