"""Figures over a whole run, gathered row by row: `statistics.json`.

They cover every finished sample, those that a filter kept aside included, however often the run was
interrupted. Whatever depends on how the run went rather than on what it made (clocks, latencies, failed
tries that went well later) stands under `timing`; everything else is equal for an interrupted run and an
unbroken one that gave the same rows. Memory grows by a few bytes for each model call. No I/O.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from statistics import stdev

from hermes.batch.spec import RunSpec
from hermes.core import JSONObject, Usage
from hermes.core.stats import quantile

DUPLICATE = "duplicate"
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass
class StatisticsTally:
    """Fed with every sample of a plan, in plan order; `result` is the content of statistics.json."""

    spec: RunSpec
    prompts: int
    """Rows of the dataset that can be used."""
    bad_rows: int
    done: int = 0
    filtered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    """Samples that were tried, in vain so far, by the last try's cause."""
    not_run: int = 0
    failed_tries: int = 0
    """All, also those of samples that went well later."""
    redacted_rows: int = 0
    """Finished samples with a secret replaced in them."""
    rows_of_hidden_thinking: int = 0
    """In the dataset, with thinking that a later call was not shown."""
    _outcomes: Counter[str] = field(default_factory=Counter)
    _toolsets: Counter[str] = field(default_factory=Counter)
    _offered: Counter[str] = field(default_factory=Counter)
    _without_tools: int = 0
    _tools: dict[str, Counter[str]] = field(default_factory=dict)
    _unknown_tools: dict[str, Counter[str]] = field(default_factory=dict)
    _usage: Usage = field(default_factory=Usage)
    _costs: array[float] = field(default_factory=lambda: array("d"))
    _assistant_turns: int = 0
    _reasoned: int = 0
    _turns: Counter[int] = field(default_factory=Counter)
    _tool_calls: Counter[int] = field(default_factory=Counter)
    _rewards: array[float] = field(default_factory=lambda: array("d"))
    _grader_failures: int = 0
    _passes: dict[str, list[int]] = field(default_factory=dict)
    """Key → [passed, scored]."""
    _latencies_ms: array[float] = field(default_factory=lambda: array("d"))
    _durations_s: array[float] = field(default_factory=lambda: array("d"))
    _started_at_ms: int | None = None
    _ended_at_ms: int | None = None

    def add_finished(self, row: JSONObject, filtered: str | None) -> None:
        """`row`: of data.formats.batch.dataset_row; `filtered`: why the row is filtered, if it is."""
        if filtered is None:
            self.done += 1
            self.rows_of_hidden_thinking += row["thinking_shown"] is False
        else:
            self.filtered[DUPLICATE if filtered.startswith(DUPLICATE) else filtered] += 1
        self._outcomes[row["outcome"]["stop_reason"]] += 1
        self._toolsets.update(row["toolsets"] or ())
        self._offered.update(row["tool_stats"].keys())
        self._without_tools += not row["tool_stats"]
        _add_calls(self._tools, row["tool_stats"])
        _add_calls(self._unknown_tools, row["unknown_tools"])
        self._usage += Usage.from_json(row["usage"])
        if row["cost_usd"] is not None:
            self._costs.append(row["cost_usd"])
        self._turns[row["turns"]] += 1
        calls = (*row["tool_stats"].values(), *row["unknown_tools"].values())
        self._tool_calls[sum(counts["count"] for counts in calls)] += 1
        self._add_reasoning(row["conversations"])
        self._add_reward(row)
        self._add_timing(row)

    def result(self) -> JSONObject:
        finished = self.done + self.filtered.total()
        known_cost = round(math.fsum(self._costs), 10)
        return {
            "run_name": self.spec.name,
            "model": self.spec.model,
            "distribution": self.spec.distribution,
            "total_prompts": self.prompts,
            "samples_per_prompt": self.spec.samples_per_prompt,
            "samples": {
                "planned": self.prompts * self.spec.samples_per_prompt,
                "done": self.done,
                "filtered": self.filtered.total(),
                "failed": self.failed.total(),
                "not_run": self.not_run,
            },
            "bad_rows": self.bad_rows,
            "outcomes": _by_count(self._outcomes),
            "filtered": _by_count(self.filtered),
            "failed": _by_count(self.failed),
            "redacted_rows": self.redacted_rows,
            "missing_toolsets": list(self.spec.missing_toolsets),
            "toolsets_offered": _by_count(self._toolsets),
            "tools_offered": _by_count(self._offered),
            "samples_without_tools": self._without_tools,
            "tool_statistics": _with_rates(self._tools),
            "unknown_tools": _with_rates(self._unknown_tools),
            "reasoning_statistics": {
                "total_assistant_turns": self._assistant_turns,
                "turns_with_reasoning": self._reasoned,
                "turns_without_reasoning": self._assistant_turns - self._reasoned,
            },
            "turns": spread(self._turns),
            "tool_calls": spread(self._tool_calls),
            "tokens": {field.name: getattr(self._usage, field.name) for field in fields(Usage)},
            "cost_usd": known_cost if len(self._costs) == finished else None,
            "known_cost_usd": known_cost,
            "unpriced": finished - len(self._costs),
            "reward": describe_rewards(self._rewards, self._grader_failures),
            "pass_rate": self._pass_rate(),
            "timing": self._timing(),
        }

    def _add_reasoning(self, conversations: Sequence[JSONObject]) -> None:
        values = [turn["value"] for turn in conversations if turn["from"] == "gpt"]
        self._assistant_turns += len(values)
        self._reasoned += sum(has_reasoning(value) for value in values)

    def _add_reward(self, row: JSONObject) -> None:
        self._grader_failures += row["reward_error"] is not None
        if row["reward"] is None:
            return
        self._rewards.append(row["reward"])
        tried = self._passes.setdefault(row["key"], [0, 0])
        tried[0] += row["reward"] == 1
        tried[1] += 1

    def _add_timing(self, row: JSONObject) -> None:
        self._latencies_ms.extend(row["latency_ms"] or ())
        duration_s = row["duration_s"] or 0.0
        self._durations_s.append(duration_s)
        start, end = row["created_at_ms"], row["created_at_ms"] + round(duration_s * 1000)
        self._started_at_ms = min(start, self._started_at_ms or start)
        self._ended_at_ms = max(end, self._ended_at_ms or end)

    def _pass_rate(self) -> JSONObject | None:
        """None unless every reward is 0 or 1."""
        if not self._rewards or any(reward not in (0.0, 1.0) for reward in self._rewards):
            return None
        rates = [passed / scored for passed, scored in self._passes.values()]
        return {
            "prompts": len(rates),
            "mean": math.fsum(rates) / len(rates),
            "solved_always": sum(rate == 1 for rate in rates),
            "solved_sometimes": sum(0 < rate < 1 for rate in rates),
            "solved_never": sum(rate == 0 for rate in rates),
        }

    def _timing(self) -> JSONObject:
        start, end = self._started_at_ms, self._ended_at_ms
        return {
            "started_at": None if start is None else _utc(start),
            "completed_at": None if end is None else _utc(end),
            "duration_seconds": None if start is None or end is None else (end - start) / 1000,
            "sample_duration_s": percentiles(self._durations_s),
            "model_calls": len(self._latencies_ms),
            "latency_ms": percentiles(self._latencies_ms),
            "failed_tries": self.failed_tries,
        }


def has_reasoning(value: str) -> bool:
    """Whether an assistant turn opens with thinking that is not empty."""
    if not value.startswith("<think>"):
        return False
    return bool(value.removeprefix("<think>").partition("</think>")[0].strip())


def percentiles(values: Sequence[float]) -> JSONObject | None:
    """p50, p90 and p99; None of nothing."""
    ordered = sorted(values)
    return {name: quantile(ordered, share) for name, share in _QUANTILES.items()} if ordered else None


def spread(counts: Counter[int]) -> JSONObject | None:
    """The spread of whole numbers, from how often each occurs."""
    if not counts:
        return None
    ordered = sorted(counts.elements())
    return {
        "mean": sum(ordered) / len(ordered),
        "p50": quantile(ordered, 0.5),
        "p90": quantile(ordered, 0.9),
        "max": ordered[-1],
        "counts": {str(value): counts[value] for value in sorted(counts)},
    }


def describe_rewards(rewards: Sequence[float], grader_failures: int) -> JSONObject | None:
    """`std` is that of a sample (n − 1), null for fewer than two; None where nothing was to be scored."""
    if not rewards and not grader_failures:
        return None
    ordered = sorted(rewards)
    mean = math.fsum(ordered) / len(ordered) if ordered else None
    quarters = {"min": 0.0, "p25": 0.25, "p50": 0.5, "p75": 0.75, "max": 1.0}
    return {
        "count": len(ordered),
        "grader_failures": grader_failures,
        "mean": mean,
        "std": stdev(ordered) if len(ordered) > 1 else None,
        **{name: quantile(ordered, share) if ordered else None for name, share in quarters.items()},
    }


def _add_calls(total: dict[str, Counter[str]], stats: JSONObject) -> None:
    for tool, counts in stats.items():
        total.setdefault(tool, Counter()).update(counts)


def _with_rates(tools: dict[str, Counter[str]]) -> JSONObject:
    """Rates in percent; null for a tool that was offered and never called."""

    def rate(part: int, count: int) -> float | None:
        return round(100 * part / count, 2) if count else None

    return {
        tool: {
            "count": stats["count"],
            "success": stats["success"],
            "failure": stats["failure"],
            "success_rate": rate(stats["success"], stats["count"]),
            "failure_rate": rate(stats["failure"], stats["count"]),
        }
        for tool, stats in sorted(tools.items())
    }


def _by_count(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))


def _utc(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
