"""A reader with the queries of a person who browses."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from hermes.core import Header, Outcome, Step
from hermes.core.json import JSON
from hermes.errors import UsageError
from hermes.store import sqlite
from hermes.store.browse import batches, candidates
from hermes.store.browse.columns import SqlCondition
from hermes.store.encode import decode_header, decode_step
from hermes.store.query import JOINED, fts_query
from hermes.store.reader import Reader
from hermes.store.summary import SUMMARY, Summary, decode_summary, snippet

MAX_MATCHES = 400
"""Messages that one page of a search looks at, newest first; the next page looks at older ones."""
_MAX_COUNTED = 20_000
_NEWEST = 4000
_WALKED = 25_000
"""How many trajectories one page looks at for a condition that has to read each of them."""
"""Trajectories that are looked at one by one first: a condition that many satisfy is answered by them."""
_HITS_A_MESSAGE = 240
_FILTERED_HITS_A_MESSAGE = 2000
_COUNT_LIMIT_S = 2.0
_LAST_ROW = 2**63 - 1
_INSTRUCTIONS_BETWEEN_CHECKS = 20_000
_WINDOW = """
SELECT s.id, s.trajectory, s.idx, s.kind, s.message, s.started_at_ms, s.ephemeral, s.tool, s.ok, s.body,
    NULL AS raw, m.body AS message_body, NULL AS prompt_ids, NULL AS sampled_ids, NULL AS logprobs,
    NULL AS policy_version, k.step IS NOT NULL AS has_tokens
FROM steps s JOIN messages m ON m.id = s.message LEFT JOIN token_traces k ON k.step = s.id
WHERE s.trajectory = ? AND s.idx >= ? ORDER BY s.idx LIMIT ?
"""


class TextHit(NamedTuple):
    """Where the searched words are."""

    step_index: int
    snippet: str


class ListedTrajectory(NamedTuple):
    seq: int
    """Position in the store: the key of the next page."""
    summary: Summary
    hit: TextHit | None = None


class TrajectoryPage(NamedTuple):
    rows: list[ListedTrajectory]
    next_before: int | None
    """Where the next page begins; None: there is none."""


class TrajectoryCount(NamedTuple):
    number: int
    exact: bool


@dataclass(frozen=True, slots=True)
class TrajectoryHead:
    """A trajectory without its steps."""

    seq: int
    header: Header
    outcome: Outcome | None
    steps: int
    finished_at_ms: int | None


class WindowStep(NamedTuple):
    step: Step
    has_tokens: bool


class BrowseReader(Reader):
    """Reads pages of the store."""

    def page(
        self,
        conditions: Iterable[SqlCondition],
        text: str = "",
        *,
        before: int | None = None,
        limit: int = 50,
    ) -> TrajectoryPage:
        """Trajectories that satisfy every condition and have all words of `text` in one message."""
        clauses = list(conditions)
        if text:
            return self._search_page(clauses, text, before, limit)
        rows: list[sqlite3.Row] = []
        bound = 0
        if clauses:
            last = self._db.execute("SELECT coalesce(max(seq), 0) FROM trajectories").fetchone()[0] + 1
            bound = (last if before is None else before) - _NEWEST
            rows = self._select([*clauses, SqlCondition("t.seq >= ?", (bound,))], before, limit)
        walked = 0
        if len(rows) <= limit:
            filtered = _with_prefilters(clauses)
            if any(clause.walks for clause in clauses):
                walked = max(0, bound + _NEWEST - _WALKED)
                filtered.append(SqlCondition("t.seq >= ?", (walked,)))
            rows = self._select(filtered, before, limit)
        listed = [ListedTrajectory(row["seq"], decode_summary(row, self._db)) for row in rows[:limit]]
        if len(rows) > limit:
            return TrajectoryPage(listed, listed[-1].seq)
        return TrajectoryPage(listed, walked if walked > 1 else None)

    def _select(self, clauses: Sequence[SqlCondition], before: int | None, limit: int) -> list[sqlite3.Row]:
        condition, values = _joined(clauses, before)
        return self._db.execute(
            f"{SUMMARY} WHERE {condition} ORDER BY t.seq DESC LIMIT ?", [*values, limit + 1]
        ).fetchall()

    def count_matching(self, conditions: Iterable[SqlCondition], text: str = "") -> TrajectoryCount:
        """How many there are, counted for two seconds at most."""
        clauses = list(conditions)
        if not clauses and not text:
            return TrajectoryCount(self._db.execute("SELECT count(*) FROM trajectories").fetchone()[0], True)
        condition, values = _joined(_with_prefilters(clauses), None)
        if not text:
            return self._limited_count(f"SELECT count(*) {JOINED} WHERE {condition}", values)
        messages = self._matching_messages(text, _MAX_COUNTED)
        query = (
            f"SELECT count(*) {JOINED} WHERE t.seq IN (SELECT s.trajectory FROM json_each(?) j"
            f" JOIN steps s ON s.message = j.value) AND {condition}"
        )
        counted = self._limited_count(query, [json.dumps(messages), *values])
        return TrajectoryCount(counted.number, counted.exact and len(messages) < _MAX_COUNTED)

    def resolve(self, reference: str) -> str:
        """A full id is looked up in the index; only a part of one needs a pass over all ids."""
        row = self._db.execute("SELECT id FROM trajectories WHERE id = ?", (reference.upper(),)).fetchone()
        return super().resolve(reference) if row is None else str(row[0])

    def head(self, trajectory_id: str) -> TrajectoryHead:
        row = self._db.execute(
            f"SELECT t.*, o.stop_reason, o.boundary, o.error_type, o.detail, o.finished_at_ms,"
            f" (SELECT count(*) FROM steps s WHERE s.trajectory = t.seq) AS steps {JOINED} WHERE t.id = ?",
            (trajectory_id,),
        ).fetchone()
        if row is None:
            raise UsageError(f"no trajectory {trajectory_id}", "The list of trajectories has all of them.")
        return TrajectoryHead(
            row["seq"], decode_header(row), self._outcome(row), row["steps"], row["finished_at_ms"]
        )

    def window(self, head: TrajectoryHead, start: int, count: int) -> list[WindowStep]:
        """`count` steps from index `start`, without token ids, and the tool results of the last."""
        rows = self._db.execute(_WINDOW, (head.seq, start, count + 64)).fetchall()
        end = min(count, len(rows))
        while end < len(rows) and rows[end]["kind"] == "tool":
            end += 1
        return [WindowStep(decode_step(row), bool(row["has_tokens"])) for row in rows[:end]]

    def step(self, head: TrajectoryHead, index: int) -> Step:
        """One step with everything that is recorded of it."""
        row = self._db.execute(
            "SELECT s.*, m.body AS message_body, k.prompt_ids, k.sampled_ids, k.logprobs, k.policy_version"
            " FROM steps s JOIN messages m ON m.id = s.message LEFT JOIN token_traces k ON k.step = s.id"
            " WHERE s.trajectory = ? AND s.idx = ?",
            (head.seq, index),
        ).fetchone()
        if row is None:
            raise UsageError(
                f"trajectory {head.header.id} has no step {index}", f"It has the steps 0 to {head.steps - 1}."
            )
        return decode_step(row)

    def neighbours(self, seq: int) -> tuple[str | None, str | None]:
        """The ids of the next newer and the next older trajectory."""
        newer = self._db.execute(
            "SELECT id FROM trajectories WHERE seq > ? ORDER BY seq LIMIT 1", (seq,)
        ).fetchone()
        older = self._db.execute(
            "SELECT id FROM trajectories WHERE seq < ? ORDER BY seq DESC LIMIT 1", (seq,)
        ).fetchone()
        return (newer[0] if newer else None), (older[0] if older else None)

    def relatives(self, head: TrajectoryHead, limit: int = 64) -> list[Summary]:
        """Attempts at the same task of the same run, and what was derived from it or from its parent."""
        header = head.header
        conditions = ["t.parent_id = ?"]
        values: list[JSON] = [header.id]
        if header.parent_id is not None:
            conditions.append("t.id = ? OR t.parent_id = ?")
            values += [header.parent_id, header.parent_id]
        if header.run_id is not None and header.task_id is not None:
            conditions.append("(t.run_id = ? AND t.task_id = ?)")
            values += [header.run_id, header.task_id]
        rows = self._db.execute(
            f"{SUMMARY} WHERE ({' OR '.join(conditions)}) AND t.seq != ? ORDER BY t.seq LIMIT ?",
            [*values, head.seq, limit],
        ).fetchall()
        return [decode_summary(row, self._db) for row in rows]

    def find_in(self, head: TrajectoryHead, text: str, limit: int = 200) -> list[int]:
        """The indices of the steps whose message has `text`, in any case."""
        needle = json.dumps(text, ensure_ascii=False)[1:-1].lower()
        function = "lower" if needle.isascii() else "lower_unicode"
        rows = self._db.execute(
            f"SELECT s.idx FROM steps s JOIN messages m ON m.id = s.message"
            f" WHERE s.trajectory = ? AND instr({function}(m.body), ?) > 0 ORDER BY s.idx LIMIT ?",
            (head.seq, needle, limit),
        )
        return [row[0] for row in rows]

    def recent_values(self, column: str, limit: int = 12) -> list[str]:
        """Values of `model`, `source`, `run` or `outcome` of the newest trajectories, frequent first."""
        expressions = {
            "model": "t.model",
            "source": "t.source",
            "run": "t.run_id",
            "outcome": "coalesce(o.stop_reason, 'running')",
        }
        rows = self._db.execute(
            f"SELECT value FROM (SELECT {expressions[column]} AS value {JOINED}"
            " ORDER BY t.seq DESC LIMIT 500)"
            " WHERE value IS NOT NULL GROUP BY value ORDER BY count(*) DESC, value LIMIT ?",
            (limit,),
        )
        return [row[0] for row in rows]

    def draw(
        self,
        conditions: Sequence[SqlCondition],
        rater: str,
        kinds: Collection[str],
        besides: Collection[str],
        seed: int,
    ) -> str | None:
        """The id of a trajectory that waits for this rater; see `candidates`."""
        row = candidates.draw(self._db, conditions, rater, kinds, besides, seed)
        return None if row is None else row.id

    def draw_pair(
        self, conditions: Sequence[SqlCondition], rater: str, besides: Collection[str], seed: int
    ) -> candidates.CandidatePair | None:
        return candidates.draw_pair(self._db, conditions, rater, besides, seed)

    def run_counts(self, after: int) -> list[batches.RunCount]:
        return batches.run_counts(self._db, after)

    def recorded_runs(self, counts: Iterable[batches.RunCount]) -> list[batches.RecordedRun]:
        return batches.recorded_runs(self._db, counts)

    def ends_of(self, run_id: str) -> list[batches.EndCount]:
        return batches.ends_of(self._db, run_id)

    def totals_of(self, run_id: str) -> batches.RunTotals:
        return batches.totals_of(self._db, run_id)

    def rater_counts(self, rater: str) -> dict[str, int]:
        """Ratings of one rater that count, by kind."""
        rows = self._db.execute(
            "SELECT r.kind, count(*) FROM ratings r WHERE r.rater = ? AND r.kind != 'withdraw' AND NOT EXISTS"
            " (SELECT 1 FROM ratings n WHERE n.replaces = r.id AND n.replaces IS NOT NULL) GROUP BY r.kind",
            (rater,),
        )
        return dict(rows.fetchall())

    def last_rating_of(self, rater: str) -> str | None:
        """The id of the rater's newest rating that counts."""
        row = self._db.execute(
            "SELECT r.id FROM ratings r WHERE r.rater = ? AND r.kind != 'withdraw' AND NOT EXISTS"
            " (SELECT 1 FROM ratings n WHERE n.replaces = r.id AND n.replaces IS NOT NULL)"
            " ORDER BY r.seq DESC LIMIT 1",
            (rater,),
        ).fetchone()
        return None if row is None else str(row[0])

    def rating_events(self) -> int:
        """How many rating events there are; grows with every one."""
        return int(self._db.execute("SELECT coalesce(max(seq), 0) FROM ratings").fetchone()[0])

    def figures(self, since_ms: int) -> dict[str, int]:
        """The figures of what the store holds, and of what was added since."""
        queries = {
            "trajectories": ("SELECT count(*) FROM trajectories", ()),
            "ratings": ("SELECT count(*) FROM ratings", ()),
            "rewards": ("SELECT count(*) FROM rewards", ()),
            "new_trajectories": ("SELECT count(*) FROM trajectories WHERE created_at_ms > ?", (since_ms,)),
            "new_ratings": ("SELECT count(*) FROM ratings WHERE created_at_ms > ?", (since_ms,)),
            "rated": ("SELECT count(DISTINCT trajectory) FROM ratings", ()),
            "unfinished": ("SELECT count(*) FROM unfinished", ()),
        }
        return {
            name: self._db.execute(query, values).fetchone()[0] for name, (query, values) in queries.items()
        }

    def _search_page(
        self, clauses: Sequence[SqlCondition], text: str, before: int | None, limit: int
    ) -> TrajectoryPage:
        messages = self._matching_messages(text, MAX_MATCHES, before)
        hits_each = _FILTERED_HITS_A_MESSAGE if clauses else _HITS_A_MESSAGE
        newest = self._newest_hits(messages, before, hits_each)
        seqs = sorted(newest, reverse=True)
        candidates = seqs if clauses else seqs[: limit + 1]
        condition, values = _joined(clauses, None)
        rows = self._db.execute(
            f"{SUMMARY} WHERE t.seq IN (SELECT value FROM json_each(?)) AND {condition}"
            " ORDER BY t.seq DESC LIMIT ?",
            [json.dumps(candidates), *values, limit + 1],
        ).fetchall()
        listed = [
            ListedTrajectory(row["seq"], decode_summary(row, self._db), self._hit(newest[row["seq"]], text))
            for row in rows[:limit]
        ]
        if len(rows) > limit:
            return TrajectoryPage(listed, listed[-1].seq)
        # Older messages may match as well: the next page begins where this one stopped looking.
        unread = len(messages) == MAX_MATCHES and seqs
        return TrajectoryPage(listed, seqs[-1] if unread else None)

    def _matching_messages(self, text: str, limit: int, before: int | None = None) -> list[int]:
        """Newest first. `before`: only messages that trajectories older than this one can have."""
        bound = None
        if before is not None:
            bound = self._db.execute(
                "SELECT max(message) FROM steps WHERE trajectory BETWEEN ? AND ?", (before - 50, before)
            ).fetchone()[0]
        rows = self._db.execute(
            "SELECT rowid FROM message_search WHERE message_search MATCH ? AND rowid <= ?"
            " ORDER BY rowid DESC LIMIT ?",
            (fts_query(text), _LAST_ROW if bound is None else bound, limit),
        )
        return [row[0] for row in rows]

    def _newest_hits(
        self, messages: Sequence[int], before: int | None, hits_each: int
    ) -> dict[int, tuple[int, int]]:
        """Trajectory → step index and message of its last hit."""
        condition = "" if before is None else " AND trajectory < ?"
        bound = [] if before is None else [before]
        newest: dict[int, tuple[int, int]] = {}
        columns = "SELECT trajectory, idx, message FROM steps"
        query = f"{columns} WHERE message = ?{condition} ORDER BY id DESC LIMIT ?"
        for message in messages:
            for row in self._db.execute(query, [message, *bound, hits_each]):
                newest.setdefault(row[0], (row[1], row[2]))
        return newest

    def _hit(self, place_in_text: tuple[int, int], text: str) -> TextHit:
        step_index, message = place_in_text
        row = self._db.execute("SELECT body FROM messages WHERE id = ?", (message,)).fetchone()
        return TextHit(step_index, snippet(row[0], text))

    def _limited_count(self, query: str, values: Sequence[JSON]) -> TrajectoryCount:
        with self._time_limit(_COUNT_LIMIT_S):
            try:
                row = self._db.execute(query, list(values)).fetchone()
            except sqlite.dbapi().OperationalError as error:
                if "interrupt" not in str(error):
                    raise
                return TrajectoryCount(0, False)
        return TrajectoryCount(row[0], True)

    @contextmanager
    def _time_limit(self, seconds: float) -> Iterator[None]:
        import time

        deadline_s = time.monotonic() + seconds
        self._db.set_progress_handler(
            lambda: int(time.monotonic() > deadline_s), _INSTRUCTIONS_BETWEEN_CHECKS
        )
        try:
            yield
        finally:
            self._db.set_progress_handler(None, 0)


def _with_prefilters(clauses: Sequence[SqlCondition]) -> list[SqlCondition]:
    filters = [SqlCondition(entry.prefilter, entry.prefilter_values) for entry in clauses if entry.prefilter]
    return [*filters, *clauses]


def _joined(clauses: Sequence[SqlCondition], before: int | None) -> tuple[str, list[JSON]]:
    parts = [f"({condition.clause})" for condition in clauses]
    values: list[JSON] = [value for condition in clauses for value in condition.values]
    if before is not None:
        parts.append("t.seq < ?")
        values.append(before)
    return " AND ".join(parts) or "1", values
