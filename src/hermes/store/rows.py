"""Inserts, inside a transaction that the writer opened. Content is stored once, by its hash.

Redaction happens here, on the JSON text of everything that holds free text, before it is hashed. If
a message was redacted, the token ids that spell it are withheld from every call that received or produced it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hermes.core import (
    Boundary,
    Fact,
    Header,
    JSONObject,
    Message,
    ModelCall,
    Outcome,
    Rating,
    RatingKind,
    Reward,
    Step,
    StepKind,
    StopReason,
    Trajectory,
    canonical_json,
    content_hash,
    ordered_json,
)
from hermes.core.json import JSON
from hermes.errors import StoreError
from hermes.store import facts, owner
from hermes.store.encode import index_text, pack_floats, pack_ints, search_text, searchable, storable
from hermes.store.query import TOTALS
from hermes.store.rating import events, queues

CUT_DETAIL = "the process that recorded this ended without finishing it"
_ROOT = 0  # parent of every first message in the context trie


class _Node(NamedTuple):
    """A place in the context trie."""

    message: Message
    context: int
    redacted: bool


class _Stored(NamedTuple):
    id: int
    redacted: bool


class Rows:
    """The inserts of one connection, and what they remember of open trajectories.

    The memory is a cache: `forget` after a rollback, and everything is looked up again.
    """

    def __init__(self, connection: sqlite3.Connection, redact: Callable[[str], str]) -> None:
        self._db = connection
        self._redact = redact
        self._seq: dict[str, int] = {}
        self._path: dict[int, list[_Node]] = {}
        self._tools: dict[int, tuple[Sequence[JSONObject], int]] = {}
        self._messages: dict[Message, _Stored] = {}
        """Stored in this transaction: between two, another process may delete."""

    @property
    def connection(self) -> sqlite3.Connection:
        """For operations of other tables, inside the same transaction."""
        return self._db

    def forget(self) -> None:
        self._seq.clear()
        self._path.clear()
        self._tools.clear()
        self._messages.clear()

    def begin_transaction(self) -> None:
        self._messages.clear()

    def insert_fact(self, fact: Fact, max_facts: int) -> None:
        trajectory = None if fact.trajectory_id is None else self._trajectory(fact.trajectory_id)
        facts.insert(self._db, replace(fact, text=storable(self._redact(fact.text))), trajectory, max_facts)

    def insert_trajectory(self, header: Header) -> None:
        if self._db.execute("SELECT 1 FROM trajectories WHERE id = ?", (header.id,)).fetchone():
            raise StoreError(f"trajectory {header.id} exists already")
        cursor = self._db.execute(
            "INSERT INTO trajectories (id, source, model, created_at_ms, session_id, run_id, task_id,"
            " sample_index, parent_id, relation, tools, config, metadata, owner)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                header.id,
                header.source.value,
                header.model,
                header.created_at_ms,
                header.session_id,
                header.run_id,
                header.task_id,
                header.sample_index,
                header.parent_id,
                header.relation.value if header.relation else None,
                self._text(list(header.tools)),
                self._text(header.config),
                self._text(header.metadata),
                owner.this_process(),
            ),
        )
        assert cursor.lastrowid is not None
        self._db.execute("INSERT INTO unfinished (trajectory) VALUES (?)", (cursor.lastrowid,))
        self._seq[header.id] = cursor.lastrowid

    def insert_step(
        self,
        trajectory_id: str,
        step: Step,
        context: Sequence[Message] | None,
        tools: Sequence[JSONObject],
    ) -> None:
        trajectory = self._open_trajectory(trajectory_id)
        message = self._message(step.message)
        stored_context = self._context(trajectory, context) if context is not None else None
        tokens_safe = not message.redacted and not (stored_context and stored_context.redacted)
        body, raw = self._step_body(step, tokens_safe)
        cursor = self._db.execute(
            "INSERT INTO steps (trajectory, idx, kind, message, started_at_ms, ephemeral, tool, ok, body,"
            " context, tools, raw) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                trajectory,
                step.index,
                step.kind.value,
                message.id,
                step.started_at_ms,
                step.ephemeral,
                storable(self._redact(step.result.name)) if step.result else None,
                step.result.ok if step.result else None,
                body,
                stored_context.context if stored_context else None,
                self._tool_schemas(trajectory, tools),
                raw,
            ),
        )
        if step.call and step.call.tokens and tokens_safe:
            trace = step.call.tokens
            self._db.execute(
                "INSERT INTO token_traces (step, prompt_ids, sampled_ids, logprobs, policy_version)"
                " VALUES (?, ?, ?, ?, ?)",
                (
                    cursor.lastrowid,
                    pack_ints(trace.prompt_ids),
                    pack_ints(trace.sampled_ids),
                    pack_floats(trace.logprobs),
                    trace.policy_version,
                ),
            )

    def insert_outcome(
        self, trajectory_id: str, outcome: Outcome, now_ms: int, whole: Trajectory | None = None
    ) -> None:
        """`whole`: the trajectory whose steps were all inserted in this transaction, if that is so."""
        trajectory = self._open_trajectory(trajectory_id)
        self._insert_outcome(trajectory, outcome, now_ms, whole)
        self._seq.pop(trajectory_id, None)
        self._path.pop(trajectory, None)
        self._tools.pop(trajectory, None)

    def mark_cut(self, now_ms: int) -> None:
        """Writes the outcome 'cut' for every unfinished trajectory whose recording process has ended."""
        unfinished = self._db.execute(
            "SELECT t.seq, t.owner FROM unfinished u JOIN trajectories t ON t.seq = u.trajectory"
        ).fetchall()
        dead = [seq for seq, recorder in unfinished if not owner.is_alive(recorder)]
        if not dead:
            return
        self._db.execute("BEGIN IMMEDIATE")
        for seq in dead:
            self._insert_outcome(seq, cut_outcome(), now_ms)
        self._db.execute("COMMIT")

    def insert_reward(self, reward: Reward) -> None:
        self._db.execute(
            "INSERT INTO rewards (trajectory, value, source, detail, created_at_ms) VALUES (?, ?, ?, ?, ?)",
            (
                self._trajectory(reward.trajectory_id),
                reward.value,
                reward.source,
                self._text(reward.detail),
                reward.created_at_ms,
            ),
        )

    def insert_rating(self, rating: Rating, *, checked: bool = False) -> None:
        """An event that is stored already is not stored again.

        `checked`: UsageError if it names something that does not exist. A record from another store is not
        checked, because the other side of its pairs may come later or never.
        """
        trajectory = self._trajectory(rating.trajectory_id)
        if rating.comment:
            rating = replace(rating, comment=storable(self._redact(rating.comment)))
        if rating.labels:
            rating = replace(rating, labels=tuple(storable(self._redact(label)) for label in rating.labels))
        if events.is_stored(self._db, rating):
            return
        if checked:
            events.check(self._db, rating)
        events.insert(self._db, rating, trajectory)
        if rating.queue is not None and rating.item is not None:
            queues.release(self._db, rating.queue, rating.item, rating.rater)
            if rating.kind is RatingKind.WITHDRAW:
                queues.reopen(self._db, rating.queue, rating.item)

    def _insert_outcome(
        self, trajectory: int, outcome: Outcome, now_ms: int, whole: Trajectory | None = None
    ) -> None:
        """The totals are summed from the steps that are really there."""
        detail = storable(self._redact(outcome.detail)) if outcome.detail else None
        boundary = outcome.boundary.value if outcome.boundary else None
        facts = (trajectory, outcome.stop_reason.value, boundary, outcome.error_type, detail, now_ms)
        if whole is None:
            totals: tuple[int | float | None, ...] = self._db.execute(
                f"SELECT {TOTALS}", (trajectory,)
            ).fetchone()
        else:
            totals = totals_of(whole)
        self._db.execute(f"INSERT INTO outcomes VALUES ({', '.join('?' * 15)})", (*facts, *totals))
        self._db.execute("DELETE FROM unfinished WHERE trajectory = ?", (trajectory,))

    def _trajectory(self, trajectory_id: str) -> int:
        if trajectory_id not in self._seq:
            row = self._db.execute("SELECT seq FROM trajectories WHERE id = ?", (trajectory_id,)).fetchone()
            if row is None:
                raise StoreError(f"no trajectory {trajectory_id}", "see 'hermes trajectories list'")
            return int(row[0])
        return self._seq[trajectory_id]

    def _open_trajectory(self, trajectory_id: str) -> int:
        if trajectory_id in self._seq:  # from its first step to its outcome
            return self._seq[trajectory_id]
        seq = self._trajectory(trajectory_id)
        if not self._db.execute("SELECT 1 FROM unfinished WHERE trajectory = ?", (seq,)).fetchone():
            raise StoreError(f"trajectory {trajectory_id} is finished and cannot be changed")
        return seq

    def _text(self, value: JSON) -> str:
        if value == {}:
            return "{}"
        return self._redact(canonical_json(value))

    def _message(self, message: Message) -> _Stored:
        stored = self._messages.get(message)
        if stored is None:
            stored = self._messages[message] = self._store_message(message)
        return stored

    def _store_message(self, message: Message) -> _Stored:
        text = canonical_json(message.to_json())
        clean = self._redact(text)
        redacted = clean != text
        digest = content_hash(clean)
        cursor = self._db.execute(
            "INSERT INTO messages (hash, role, body, redacted) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (digest, message.role.value, clean, redacted),
        )
        if not cursor.rowcount:
            row = self._db.execute("SELECT id FROM messages WHERE hash = ?", (digest,)).fetchone()
            return _Stored(row[0], redacted)
        assert cursor.lastrowid is not None
        # a deletion makes the same text of the stored body
        indexed = index_text(clean) if redacted else storable(searchable(search_text(message)))
        self._db.execute(
            "INSERT INTO message_search (rowid, text) VALUES (?, ?)", (cursor.lastrowid, indexed)
        )
        return _Stored(cursor.lastrowid, redacted)

    def _context(self, trajectory: int, context: Sequence[Message]) -> _Node | None:
        """The trie node of a conversation; only what is new since the last call is looked at."""
        path = self._path.setdefault(trajectory, [])
        shared = 0
        for node, message in zip(path, context, strict=False):
            if node.message is not message and node.message != message:
                break
            shared += 1
        del path[shared:]
        for message in context[shared:]:
            stored = self._message(message)
            parent = path[-1] if path else None
            redacted = stored.redacted or bool(parent and parent.redacted)
            node_id = self._context_node(parent.context if parent else _ROOT, stored.id, redacted)
            path.append(_Node(message, node_id, redacted))
        return path[-1] if path else None

    def _context_node(self, parent: int, message: int, redacted: bool) -> int:
        cursor = self._db.execute(
            "INSERT INTO contexts (parent, message, redacted) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (parent, message, redacted),
        )
        if cursor.rowcount:
            assert cursor.lastrowid is not None
            return cursor.lastrowid
        row = self._db.execute(
            "SELECT id FROM contexts WHERE parent = ? AND message = ?", (parent, message)
        ).fetchone()
        return int(row[0])

    def _tool_schemas(self, trajectory: int, tools: Sequence[JSONObject]) -> int | None:
        if not tools:
            return None
        cached = self._tools.get(trajectory)
        if cached is not None and cached[0] is tools:
            return cached[1]
        text = self._redact(ordered_json(list(tools)))  # the model reads the keys in this order
        digest = content_hash(text)
        row = self._db.execute("SELECT id FROM tool_schemas WHERE hash = ?", (digest,)).fetchone()
        if row is None:
            cursor = self._db.execute("INSERT INTO tool_schemas (hash, body) VALUES (?, ?)", (digest, text))
            assert cursor.lastrowid is not None
            row = (cursor.lastrowid,)
        self._tools[trajectory] = (tools, row[0])
        return int(row[0])

    def _step_body(self, step: Step, tokens_safe: bool) -> tuple[str | None, str | None]:
        if step.call is not None:
            body = step.call.to_json()
            if step.call.tokens and not tokens_safe:
                body["tokens_withheld"] = "redacted"
            return self._text(body), self._raw(step.call)
        if step.result is not None:
            return self._text(step.result.to_json()), None
        return None, None

    def _raw(self, call: ModelCall) -> str | None:
        return None if call.raw is None else self._text(call.raw)


def totals_of(trajectory: Trajectory) -> tuple[int | float | None, ...]:
    """`query.TOTALS` of a trajectory in memory."""
    results = [step.result for step in trajectory.steps if step.kind is StepKind.TOOL]
    failed = sum(result is not None and not result.ok for result in results)
    usage = trajectory.usage
    return (
        sum(step.kind is StepKind.MODEL for step in trajectory.steps),
        len(results),
        failed,
        usage.input_tokens,
        usage.cached_input_tokens,
        usage.cache_write_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        trajectory.cost_usd,
    )


def cut_outcome() -> Outcome:
    return Outcome(StopReason.CUT, Boundary.HOST, detail=CUT_DETAIL)
