"""Which trajectories: one filter, written once, used by listing, statistics and export."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hermes.core.json import JSON
from hermes.store.encode import searchable

JOINED = "FROM trajectories t LEFT JOIN outcomes o ON o.trajectory = t.seq"

RATING_SCORE = (
    "CASE r.kind WHEN 'score' THEN r.value WHEN 'thumb' THEN CASE WHEN r.value > 0 THEN 5.0 ELSE 1.0 END END"
)
"""A rating on the 1…5 scale: thumbs count as its ends; pairs and steps have no place on it."""

LATEST_RATING = f"""(
    SELECT {RATING_SCORE} FROM ratings r
    WHERE r.trajectory = t.seq AND r.kind IN ('score', 'thumb')
        AND NOT EXISTS
            (SELECT 1 FROM ratings newer WHERE newer.replaces = r.id AND newer.replaces IS NOT NULL)
    ORDER BY r.source = 'person' DESC, r.seq DESC LIMIT 1)"""
"""The newest verdict of a person; without one, the newest of a rule or a model."""

LATEST_REWARD = (
    "(SELECT value FROM rewards w WHERE w.trajectory = t.seq AND w.source NOT LIKE 'reward-model:%'"
    " ORDER BY w.id DESC LIMIT 1)"
)
"""A reward model's score of a trajectory is an opinion about it, not its reward."""

TOTALS = """
    count(*) FILTER (WHERE kind = 'model') AS turns,
    count(*) FILTER (WHERE kind = 'tool') AS tool_calls,
    count(*) FILTER (WHERE kind = 'tool' AND NOT ok) AS tool_errors,
    coalesce(sum(body ->> '$.usage.input_tokens'), 0) AS input_tokens,
    coalesce(sum(body ->> '$.usage.cached_input_tokens'), 0) AS cached_input_tokens,
    coalesce(sum(body ->> '$.usage.cache_write_tokens'), 0) AS cache_write_tokens,
    coalesce(sum(body ->> '$.usage.output_tokens'), 0) AS output_tokens,
    coalesce(sum(body ->> '$.usage.reasoning_tokens'), 0) AS reasoning_tokens,
    CASE WHEN count(*) FILTER (WHERE kind = 'model' AND body ->> '$.cost_usd' IS NULL) = 0
        THEN coalesce(sum(body ->> '$.cost_usd'), 0.0) END AS cost_usd
FROM steps WHERE trajectory = ?
"""
"""The sums over one trajectory's steps; the cost is null as soon as one call's is."""


class Evidence(StrEnum):
    """The verdicts beside a trajectory that one can learn from."""

    RATING = "rating"
    """A rating of it, or a choice between it and another one."""
    REWARD = "reward"
    RETRY = "retry"
    """It is a second attempt, or has one."""


_EVIDENCE = {
    Evidence.RATING: "(t.seq IN (SELECT trajectory FROM ratings)"
    " OR t.id IN (SELECT other_id FROM ratings WHERE other_id IS NOT NULL))",
    Evidence.REWARD: "t.seq IN (SELECT trajectory FROM rewards)",
    Evidence.RETRY: "(t.relation = 'retry' OR t.id IN"
    " (SELECT parent_id FROM trajectories WHERE relation = 'retry' AND parent_id IS NOT NULL))",
}


@dataclass(frozen=True, slots=True)
class Filter:
    """All conditions must hold; None means 'any'."""

    ids: tuple[str, ...] | None = None
    model: str | None = None
    source: str | None = None
    other_than_source: str | None = None
    run_id: str | None = None
    session_id: str | None = None
    agent: str | None = None
    """The program that ran it, such as claude-code."""
    tool: str | None = None
    """Called at least once."""
    stop_reason: str | None = None
    """A StopReason, or 'running' for trajectories without an outcome."""
    min_reward: float | None = None
    max_reward: float | None = None
    min_rating: float | None = None
    """On the 1…5 scale (good = 5, bad = 1)."""
    max_rating: float | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    text: str | None = None
    """Full-text: every word occurs in one message."""
    evidence: tuple[Evidence, ...] | None = None
    """At least one of these exists."""

    @property
    def bounds_rating(self) -> bool:
        return self.min_rating is not None or self.max_rating is not None

    def where(self) -> tuple[str, list[JSON]]:
        """A SQL condition over trajectories `t` left-joined with outcomes `o`, and its parameters."""
        clauses: list[str] = []
        values: list[JSON] = []

        def add(clause: str, *parameters: JSON) -> None:
            clauses.append(clause)
            values.extend(parameters)

        if self.ids is not None:
            add(f"t.id IN ({', '.join('?' * len(self.ids))})", *self.ids)
        for column, value in (
            ("t.model", self.model),
            ("t.source", self.source),
            ("t.run_id", self.run_id),
            ("t.session_id", self.session_id),
            ("t.metadata ->> '$.agent'", self.agent),
        ):
            if value is not None:
                add(f"{column} = ?", value)
        if self.other_than_source is not None:
            add("t.source != ?", self.other_than_source)
        if self.tool is not None:
            add("t.seq IN (SELECT trajectory FROM steps WHERE tool = ?)", self.tool)
        if self.stop_reason == "running":
            add("o.trajectory IS NULL")
        elif self.stop_reason is not None:
            add("o.stop_reason = ?", self.stop_reason)
        for expression, operator, bound in (
            (LATEST_REWARD, ">=", self.min_reward),
            (LATEST_REWARD, "<=", self.max_reward),
            (LATEST_RATING, ">=", self.min_rating),
            (LATEST_RATING, "<=", self.max_rating),
            ("t.created_at_ms", ">=", self.since_ms),
            ("t.created_at_ms", "<", self.until_ms),
        ):
            if bound is not None:
                add(f"{expression} {operator} ?", bound)
        if self.evidence is not None:
            add("(" + " OR ".join(_EVIDENCE[kind] for kind in self.evidence) + ")")
        if self.text is not None:
            add(
                "t.seq IN (SELECT s.trajectory FROM message_search m JOIN steps s ON s.message = m.rowid"
                " WHERE message_search MATCH ?)",
                fts_query(self.text),
            )
        return " AND ".join(clauses) or "1", values


ALL = Filter()


def fts_query(text: str) -> str:
    """User text as an FTS5 query: every word must occur; no operator syntax, so nothing can be malformed.

    A word in a script without spaces is a phrase of its characters: it is found wherever it occurs. A Korean
    word is found with its particles.
    """
    words = [
        f'"{searchable(word).replace(chr(34), chr(34) * 2)}"{"*" * ("가" <= word[-1] <= "힣")}'
        for word in text.split()
    ]
    return " ".join(words) or '""'
