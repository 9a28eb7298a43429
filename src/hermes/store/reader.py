"""Reading what was recorded. A reader cannot write, and sees every committed step at once.

A store that does not exist yet reads as empty. A trajectory without an outcome is running if the
process that records it lives, and 'cut' if it does not.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from hermes.core import Fact, Header, JSONObject, Message, Outcome, Rating, Reward, Step, Trajectory
from hermes.errors import UsageError
from hermes.store import facts, metrics, migrations, owner, samples, sqlite
from hermes.store.browse.columns import SqlCondition
from hermes.store.encode import decode_header, decode_outcome, decode_step, decoding
from hermes.store.query import ALL, JOINED, LATEST_RATING, LATEST_REWARD, Filter, fts_query
from hermes.store.rating import events, queues
from hermes.store.rating.events import TaskAttempt, select_attempts
from hermes.store.record import ModelInput, Record
from hermes.store.rows import cut_outcome
from hermes.store.stats import Stats, statistics
from hermes.store.summary import SUMMARY, SearchHit, Summary, TaskPrompt, decode_summary, snippet
from hermes.store.upkeep.delete import derived_ids
from hermes.store.writer import Writer

_PAGE = 2048
_LISTED = 5
"""Most ids that an error names."""


_STEPS = """
SELECT s.*, m.body AS message_body, k.prompt_ids, k.sampled_ids, k.logprobs, k.policy_version
FROM steps s JOIN messages m ON m.id = s.message LEFT JOIN token_traces k ON k.step = s.id
WHERE s.trajectory = ? ORDER BY s.idx
"""


class Reader:
    """A read-only view of one database; use as a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = self._connect(path)
        self._db.row_factory = sqlite.dbapi().Row
        self._db.create_function("lower_unicode", 1, _lower, deterministic=True)

    @staticmethod
    def _connect(path: Path) -> sqlite3.Connection:
        if not path.exists():
            connection = sqlite.connect_memory()
            migrations.migrate(connection, None)
            return connection
        with sqlite.translated_errors(path, "read"):
            connection = sqlite.connect_reader(path)
            version = migrations.version(connection)
            migrations.refuse_newer(version, path)
            if version < len(migrations.STEPS):
                connection.close()
                Writer(path).close()  # upgrades it
                connection = sqlite.connect_reader(path)
        return connection

    def metrics(self, run_id: str) -> list[metrics.StepMetrics]:
        """The numbers of a training run, by step."""
        return metrics.of_run(self._db, run_id)

    def facts(self) -> list[Fact]:
        """The facts of the memory, oldest first."""
        return facts.select(self._db)

    def resolve_fact(self, reference: str) -> Fact:
        """The fact with this id, or at least six characters of its beginning or end."""
        return facts.resolve(self._db, reference)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        damage = (sqlite.dbapi().Error, UnicodeDecodeError)
        if isinstance(error, damage):  # a page that was read in the context
            raise sqlite.store_error(self._path, error, "read") from error

    def summaries(
        self, filters: Filter = ALL, *, limit: int = 50, before: str | None = None
    ) -> list[Summary]:
        """Newest first; `before` is the last id of the previous page."""
        condition, values = filters.where()
        if before is not None:
            condition += " AND t.seq < (SELECT seq FROM trajectories WHERE id = ?)"
            values.append(before)
        rows = self._db.execute(f"{SUMMARY} WHERE {condition} ORDER BY t.seq DESC LIMIT ?", [*values, limit])
        return [decode_summary(row, self._db) for row in rows.fetchall()]

    def count(self, filters: Filter = ALL) -> int:
        condition, values = filters.where()
        row = self._db.execute(f"SELECT count(*) {JOINED} WHERE {condition}", values).fetchone()
        return int(row[0])

    def exists(self, trajectory_id: str) -> bool:
        return (
            self._db.execute("SELECT 1 FROM trajectories WHERE id = ?", (trajectory_id,)).fetchone()
            is not None
        )

    def resolve(self, reference: str) -> str:
        """A full id from what a person types: the id, a unique beginning or end of it, or 'last'."""
        if reference == "last":
            row = self._db.execute("SELECT id FROM trajectories ORDER BY seq DESC LIMIT 1").fetchone()
            if row is None:
                raise UsageError("nothing has been recorded yet", "hermes -q 'What is 17 * 23?'")
            return str(row[0])
        part = reference.upper()
        rows = self._db.execute(
            "SELECT id FROM trajectories WHERE id = ?1 OR substr(id, 1, length(?1)) = ?1"
            " OR substr(id, -length(?1)) = ?1 ORDER BY seq DESC LIMIT ?2",
            (part, _LISTED + 1),
        ).fetchall()
        if len(rows) == 1 and part:
            return str(rows[0][0])
        if not rows or not part:
            raise UsageError(
                f"'{reference}' matches no trajectory", "see 'hermes trajectories list' for the ids"
            )
        more = " and others" if len(rows) > _LISTED else ""
        ids = ", ".join(str(row[0]) for row in rows[:_LISTED])
        raise UsageError(
            f"'{reference}' matches more than one trajectory: {ids}{more}", "write more of the id"
        )

    def get(self, trajectory_id: str) -> Trajectory:
        row = self._db.execute(
            f"SELECT t.*, o.stop_reason, o.boundary, o.error_type, o.detail {JOINED} WHERE t.id = ?",
            (trajectory_id,),
        ).fetchone()
        if row is None:
            raise UsageError(f"no trajectory {trajectory_id}", "see 'hermes trajectories list'")
        steps = tuple(decode_step(step) for step in self._db.execute(_STEPS, (row["seq"],)))
        return Trajectory(decode_header(row), steps, self._outcome(row))

    def header(self, trajectory_id: str) -> Header:
        """Without the steps."""
        row = self._db.execute("SELECT * FROM trajectories WHERE id = ?", (trajectory_id,)).fetchone()
        if row is None:
            raise UsageError(f"no trajectory {trajectory_id}", "see 'hermes trajectories list'")
        return decode_header(row)

    def trajectories(self, filters: Filter = ALL) -> Iterator[Trajectory]:
        """Every matching trajectory, oldest first, one in memory at a time."""
        return map(self.get, self.matching_ids(filters))

    def matching_ids(self, filters: Filter = ALL) -> Iterator[str]:
        """The ids of the same."""
        condition, values = filters.where()
        after = 0
        while True:
            rows = self._db.execute(
                f"SELECT t.seq, t.id {JOINED} WHERE {condition} AND t.seq > ? ORDER BY t.seq LIMIT ?",
                [*values, after, _PAGE],
            ).fetchall()
            yield from (row["id"] for row in rows)
            if len(rows) < _PAGE:
                return
            after = rows[-1]["seq"]

    def running_ids(self) -> frozenset[str]:
        """The trajectories that a living process records now."""
        rows = self._db.execute(
            "SELECT t.id, t.owner FROM unfinished u JOIN trajectories t ON t.seq = u.trajectory"
        )
        return frozenset(row["id"] for row in rows if owner.is_alive(row["owner"]))

    def task_prompts(self) -> Iterator[TaskPrompt]:
        """The task and the first user message of every trajectory, oldest first."""
        rows = self._db.execute(
            "SELECT t.run_id, t.task_id, (SELECT m.body FROM steps s JOIN messages m ON m.id = s.message"
            " WHERE s.trajectory = t.seq AND NOT s.ephemeral AND m.role = 'user' ORDER BY s.idx LIMIT 1)"
            " FROM trajectories t ORDER BY t.seq"
        )
        for run_id, task_id, body in rows:
            yield TaskPrompt(run_id, task_id, json.loads(body)["content"] if body else "")

    def model_input(self, trajectory_id: str, step: Step) -> tuple[tuple[Message, ...], Sequence[JSONObject]]:
        """The messages and tool schemas that the call of a MODEL step saw, exactly."""
        row = self._db.execute(
            "SELECT s.context, k.body AS tools FROM steps s JOIN trajectories t ON t.seq = s.trajectory"
            " LEFT JOIN tool_schemas k ON k.id = s.tools WHERE t.id = ? AND s.idx = ?",
            (trajectory_id, step.index),
        ).fetchone()
        if row is None or row["context"] is None:
            raise UsageError(f"step {step.index} of {trajectory_id} is not a model call")
        return self._messages(row["context"]), _schemas(row["tools"])

    def offered_tools(self, trajectory_id: str) -> tuple[JSONObject, ...]:
        """The tool schemas of the first call whose input was recorded; empty if none was."""
        row = self._db.execute(
            "SELECT k.body FROM steps s JOIN trajectories t ON t.seq = s.trajectory"
            " LEFT JOIN tool_schemas k ON k.id = s.tools"
            " WHERE t.id = ? AND s.kind = 'model' AND s.context IS NOT NULL ORDER BY s.idx LIMIT 1",
            (trajectory_id,),
        ).fetchone()
        return tuple(_schemas(row["body"])) if row else ()

    def verdicts(self, trajectory_id: str) -> tuple[float | None, float | None]:
        """The latest reward and the latest rating, on the 1…5 scale."""
        query = f"SELECT {LATEST_REWARD}, {LATEST_RATING} FROM trajectories t WHERE t.id = ?"
        reward, rating = self._db.execute(query, (trajectory_id,)).fetchone()
        return reward, rating

    def failing_ids(self, condition: SqlCondition, filters: Filter = ALL) -> Iterator[str]:
        """The trajectories that match the filter and do not satisfy the condition."""
        clause, values = filters.where()
        rows = self._db.execute(
            f"SELECT t.id {JOINED} WHERE {clause} AND NOT coalesce(({condition.clause}), 0)",
            [*values, *condition.values],
        )
        return (row["id"] for row in rows)

    def record(self, trajectory: Trajectory) -> Record:
        """The trajectory with all that the store holds about it."""
        trajectory_id = trajectory.header.id
        rows = self._db.execute(
            "SELECT s.idx, s.context, k.body AS tools FROM steps s"
            " JOIN trajectories t ON t.seq = s.trajectory LEFT JOIN tool_schemas k ON k.id = s.tools"
            " WHERE t.id = ? AND (s.context IS NOT NULL OR s.tools IS NOT NULL)",
            (trajectory_id,),
        )
        inputs = {
            row["idx"]: ModelInput(self._messages(row["context"]), tuple(_schemas(row["tools"])))
            for row in rows
        }
        finished = self._db.execute(
            "SELECT o.finished_at_ms FROM outcomes o JOIN trajectories t ON t.seq = o.trajectory"
            " WHERE t.id = ?",
            (trajectory_id,),
        ).fetchone()
        return Record(
            trajectory,
            inputs,
            tuple(self.rewards(trajectory_id)),
            tuple(events.select(self._db, "t.id = ?", (trajectory_id,), everything=True)),
            finished["finished_at_ms"] if finished else None,
        )

    def search(self, text: str, *, limit: int = 20) -> list[SearchHit]:
        """Steps whose message has every word of `text`, best match first."""
        rows = self._db.execute(
            "SELECT t.id, s.idx, m.role, m.body, t.created_at_ms FROM message_search f"
            " JOIN messages m ON m.id = f.rowid JOIN steps s ON s.message = m.id"
            " JOIN trajectories t ON t.seq = s.trajectory"
            " WHERE message_search MATCH ? ORDER BY f.rank, t.seq DESC, s.idx LIMIT ?",
            (fts_query(text), limit),
        )
        return [
            SearchHit(row["id"], row["idx"], row["role"], snippet(row["body"], text), row["created_at_ms"])
            for row in rows
        ]

    def ratings(self, trajectory_id: str) -> list[Rating]:
        """Ratings that no later one replaces, oldest first; of pairs, those stored under this trajectory."""
        return list(events.select(self._db, "t.id = ?", (trajectory_id,)))

    def ratings_about(self, trajectory_id: str) -> list[Rating]:
        """Like `ratings`, and the pairs in which the trajectory is the other one."""
        return list(events.select(self._db, events.ABOUT, (trajectory_id,)))

    def all_ratings(self, *, everything: bool = False, since_ms: int | None = None) -> Iterator[Rating]:
        """All ratings, oldest first. `everything`: also replaced ones, and the withdrawals."""
        return events.select(self._db, "r.created_at_ms >= ?", (since_ms or 0,), everything=everything)

    def rating(self, rating_id: str) -> Rating:
        """One event, replaced or not."""
        for rating in events.select(self._db, "r.id = ?", (rating_id,), everything=True):
            return rating
        raise UsageError(f"there is no rating {rating_id}", "see 'hermes rate list'")

    def queue_names(self) -> list[str]:
        """Oldest first."""
        return queues.names(self._db)

    def queue_settings(self, name: str) -> str:
        """As `create_queue` stored them."""
        return queues.settings_of(self._db, name)

    def queue_counts(self, name: str, raters_per_item: int, now_ms: int) -> queues.QueueCounts:
        return queues.counts(self._db, name, raters_per_item, now_ms)

    def queue_ratings(self, name: str) -> list[Rating]:
        """The ratings that came from the queue and count, oldest first."""
        return list(events.select(self._db, "r.queue = ?", (name,)))

    def queue_raters(self, name: str) -> dict[str, int]:
        """Rater → ratings in the queue, most first."""
        return queues.raters(self._db, name)

    def attempts(self, filters: Filter = ALL) -> list[TaskAttempt]:
        """One short line for each matching trajectory, oldest first."""
        return select_attempts(self._db, filters)

    def surplus_attempts(self) -> frozenset[str]:
        """Trajectories that are not their sample's row in a dataset; see store.samples."""
        return samples.surplus_attempts(self._db)

    def latest_attempt_id(self, sample: samples.SampleName) -> str | None:
        """The newest trajectory of a sample of a batch run."""
        return samples.latest_attempt(self._db, sample)

    def latest_attempt(self, sample: samples.SampleName) -> Trajectory | None:
        trajectory_id = self.latest_attempt_id(sample)
        return None if trajectory_id is None else self.get(trajectory_id)

    def unjournaled_cost_usd(self, trajectory_id: str) -> float:
        """The cost of an attempt that its run's journal does not know of; see store.samples."""
        return samples.unjournaled_cost_usd(self._db, trajectory_id)

    def derived(self, ids: Sequence[str]) -> list[str]:
        """Trajectories that were made from these, at any distance."""
        return derived_ids(self._db, ids)

    def run_ids(self, ids: Sequence[str]) -> list[str]:
        """The batch and training runs that these trajectories belong to."""
        return sorted({run_id for name in ids if (run_id := self._run_of(name))})

    def names(self, kind: str) -> list[str]:
        """The names that trajectories have; `kind` is run, model, agent or tool (one that was called)."""
        query = {
            "run": "SELECT DISTINCT run_id FROM trajectories WHERE run_id IS NOT NULL",
            "model": "SELECT DISTINCT model FROM trajectories",
            "agent": "SELECT DISTINCT metadata ->> '$.agent' FROM trajectories"
            " WHERE metadata ->> '$.agent' IS NOT NULL",
            "tool": "SELECT DISTINCT tool FROM steps WHERE tool IS NOT NULL",
        }[kind]
        return sorted(str(row[0]) for row in self._db.execute(query))

    def _run_of(self, trajectory_id: str) -> str | None:
        row = self._db.execute("SELECT run_id FROM trajectories WHERE id = ?", (trajectory_id,)).fetchone()
        return None if row is None else row[0]

    @decoding("a reward")
    def rewards(self, trajectory_id: str) -> list[Reward]:
        rows = self._db.execute(
            "SELECT w.* FROM rewards w JOIN trajectories t ON t.seq = w.trajectory"
            " WHERE t.id = ? ORDER BY w.id",
            (trajectory_id,),
        )
        return [
            Reward(
                trajectory_id, row["value"], row["source"], json.loads(row["detail"]), row["created_at_ms"]
            )
            for row in rows
        ]

    def stats(self, filters: Filter = ALL) -> Stats:
        return statistics(self._db, filters)

    @decoding("a message")
    def _messages(self, context: int | None) -> tuple[Message, ...]:
        rows = self._db.execute(
            "WITH RECURSIVE up (parent, message, depth) AS ("
            " SELECT parent, message, 0 FROM contexts WHERE id = ?"
            " UNION ALL SELECT c.parent, c.message, up.depth + 1 FROM contexts c JOIN up ON c.id = up.parent"
            " AND c.parent < c.id)"  # else a damaged node could lead round in circles
            " SELECT m.body FROM up JOIN messages m ON m.id = up.message ORDER BY up.depth DESC",
            (context,),
        )
        return tuple(Message.from_json(json.loads(row["body"])) for row in rows)

    @staticmethod
    @decoding("an outcome")
    def _outcome(row: sqlite3.Row) -> Outcome | None:
        if row["stop_reason"] is not None:
            return decode_outcome(row)
        return None if owner.is_alive(row["owner"]) else cut_outcome()


@decoding("the schema of a tool")
def _schemas(body: str | None) -> Sequence[JSONObject]:
    return json.loads(body) if body else ()


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()
