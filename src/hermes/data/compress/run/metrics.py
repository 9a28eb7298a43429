"""Figures of one row and of a whole run, under the names that hermes-agent used, and some of our own.

Pure. A run's figures are sums over its rows, so a run that was interrupted has those of one that was not.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes.core import JSONObject, Message, Role
from hermes.data.compress.counting.tokens import Counter
from hermes.data.compress.folding.plan import Fold, Folded, FoldSettings
from hermes.data.compress.forms.conversation import RowConversation


@dataclass(frozen=True, slots=True)
class SummaryCost:
    """The cost of a row's summaries."""

    calls: int = 0
    """Requests that the row's texts came from or that failed; those of an earlier run are among them."""
    errors: int = 0
    """Times that it failed, or that its text was refused."""
    fallback: str | None = None
    """Why the row was folded by rules after all."""


NOTHING = SummaryCost()


def row_metrics(
    conversation: RowConversation,
    folded: Folded,
    settings: FoldSettings,
    counter: Counter,
    cost: SummaryCost,
) -> JSONObject:
    """The row's `compression_metrics`."""
    groups = conversation.turn_groups
    left = sum(any(folded.messages[i] is not None for i in group) for group in groups)
    saved = folded.original_tokens - folded.tokens
    touched = {fold.message for fold in folded.folds}
    turns = [number for number, group in enumerate(groups) if touched.intersection(group)]
    kinds = Tally(fold.kind for fold in folded.folds)
    return {
        "original_tokens": folded.original_tokens,
        "compressed_tokens": folded.tokens,
        "tokens_saved": saved,
        "compression_ratio": _share(folded.tokens, folded.original_tokens),
        "original_turns": len(groups),
        "compressed_turns": left,
        "turns_removed": len(groups) - left,
        "compression_region": {
            "start_idx": turns[0] if turns else -1,
            "end_idx": turns[-1] + 1 if turns else -1,
            "turns_count": len(turns),
        },
        "was_compressed": bool(folded.folds) and folded.fits,
        "still_over_limit": not folded.fits,
        "skipped_under_target": not folded.folds and folded.fits,
        "summarization_api_calls": cost.calls,
        "summarization_errors": cost.errors,
        "summary_fallback": cost.fallback,
        "decisions_kept": _decisions_kept(conversation, folded, counter),
        "facts": folded.facts,
        "facts_kept": folded.facts_kept,
        "folds": {kind: kinds[kind] for kind in ("tool_output", "reasoning", "exchange", "instruction")},
        "protected_outputs_folded": sum(fold.protected for fold in folded.folds),
        "tokenizer": counter.name,
        "target_max_tokens": settings.target_max_tokens,
        "strategy": settings.strategy.value,
    }


def fold_map(folds: Sequence[Fold]) -> list[JSONObject]:
    return [fold._asdict() for fold in folds]


def _decisions_kept(conversation: RowConversation, folded: Folded, counter: Counter) -> float:
    """Share of the tokens with which the assistant answered and called tools, thinking left out."""
    if all(message is not None for message in folded.messages):
        return 1.0
    decided = [i for i, message in enumerate(conversation.messages) if message.role is Role.ASSISTANT]
    tokens = counter.texts([_decision(conversation.messages[i]) for i in decided])
    left = [count for i, count in zip(decided, tokens, strict=True) if folded.messages[i] is not None]
    return _share(sum(left), sum(tokens))


def _decision(message: Message) -> str:
    calls = (f"{call.name} {call.arguments}" for call in message.tool_calls)
    return "\n".join((message.content, *calls))


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 1.0


@dataclass
class Totals:
    """The sums of a run."""

    rows: int = 0
    compressed: int = 0
    skipped_under_target: int = 0
    over_limit: int = 0
    bad_rows: int = 0
    first_bad_row: str | None = None
    """Its place and the reason."""
    fallbacks: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    turns_before: int = 0
    turns_after: int = 0
    ratios: float = 0.0
    saved: int = 0
    removed: int = 0
    decision_shares: float = 0.0
    facts: int = 0
    facts_kept: int = 0
    calls: int = 0
    errors: int = 0
    folds: Tally[str] = field(default_factory=Tally)
    protected_rows: int = 0
    """Rows that fit only because tool outputs of their protected turns were folded too."""
    protected_outputs: int = 0

    def add(self, metrics: JSONObject) -> None:
        """One row that could be read."""
        self.rows += 1
        self.compressed += metrics["was_compressed"]
        self.skipped_under_target += metrics["skipped_under_target"]
        self.over_limit += metrics["still_over_limit"]
        self.fallbacks += metrics["summary_fallback"] is not None
        self.tokens_before += metrics["original_tokens"]
        self.tokens_after += metrics["compressed_tokens"]
        self.turns_before += metrics["original_turns"]
        self.turns_after += metrics["compressed_turns"]
        self.calls += metrics["summarization_api_calls"]
        self.errors += metrics["summarization_errors"]
        if metrics["was_compressed"]:
            self.ratios += metrics["compression_ratio"]
            self.saved += metrics["tokens_saved"]
            self.removed += metrics["turns_removed"]
            self.decision_shares += metrics["decisions_kept"]
            self.facts += metrics["facts"]
            self.facts_kept += metrics["facts_kept"]
            self.folds.update(metrics["folds"])
            self.protected_rows += metrics["protected_outputs_folded"] > 0
            self.protected_outputs += metrics["protected_outputs_folded"]

    def to_json(self) -> JSONObject:
        done = max(1, self.compressed)
        return {
            "summary": {
                "total_trajectories": self.rows + self.bad_rows,
                "trajectories_compressed": self.compressed,
                "trajectories_skipped_under_target": self.skipped_under_target,
                "trajectories_still_over_limit": self.over_limit,
                "trajectories_failed": self.bad_rows,
                "compression_rate": _share(self.compressed, self.rows) if self.rows else 0.0,
            },
            "tokens": {
                "total_before": self.tokens_before,
                "total_after": self.tokens_after,
                "total_saved": self.tokens_before - self.tokens_after,
                "overall_compression_ratio": _share(self.tokens_after, self.tokens_before),
            },
            "turns": {
                "total_before": self.turns_before,
                "total_after": self.turns_after,
                "total_removed": self.turns_before - self.turns_after,
            },
            "averages": {
                "avg_compression_ratio": _share(self.ratios, done) if self.compressed else 1.0,
                "avg_tokens_saved_per_compressed": self.saved / done,
                "avg_turns_removed_per_compressed": self.removed / done,
            },
            "summarization": {
                "total_api_calls": self.calls,
                "total_errors": self.errors,
                "success_rate": _share(self.calls - self.errors, self.calls),
                "rows_folded_instead": self.fallbacks,
            },
            "kept": {
                "decisions": _share(self.decision_shares, self.compressed),
                "facts": _share(self.facts_kept, self.facts),
            },
            "folds": dict(sorted(self.folds.items())),
            "protected": {"rows": self.protected_rows, "outputs_folded": self.protected_outputs},
        }
