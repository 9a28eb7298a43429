"""The fields of a row beside the conversation, and reading them back."""

from __future__ import annotations

import hashlib

from hermes.core import (
    JSON,
    Boundary,
    Header,
    JSONObject,
    Outcome,
    Relation,
    Source,
    StopReason,
    canonical_json,
)
from hermes.data.example import Example
from hermes.data.formats.base import Column

FACTS = (
    Column("id", "string", "the trajectory's id in the store"),
    Column("model", "string", "provider/model that answered"),
    Column("source", "string", "chat, query, batch, env, delegate or import"),
    Column("outcome", "outcome", "how it ended; all but stop_reason is null if it completed"),
    Column("run_id", "string", "the run it belongs to"),
    Column("task_id", "string", "the task"),
    Column("parent_id", "string", "the trajectory it derives from"),
    Column("relation", "string", "what it is to its parent: retry, continued, compressed, delegate, side"),
    Column("created_at_ms", "int64", "Unix time of the start"),
    Column("reward", "double", "the latest"),
    Column("rating", "double", "the latest, on the 1 to 5 scale"),
    Column("metadata", "json", "carried through from the task"),
)
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
KEPT = (
    "id, model, source, outcome, run_id, task_id, parent_id, relation, created_at_ms, reward, rating,"
    " metadata"
)


def facts(example: Example) -> JSONObject:
    """The columns above; what does not apply is null."""
    header, outcome = example.trajectory.header, example.trajectory.outcome
    return {
        "id": header.id,
        "model": header.model,
        "source": header.source.value,
        "outcome": outcome.to_json() if outcome else None,
        "run_id": header.run_id,
        "task_id": header.task_id,
        "parent_id": header.parent_id,
        "relation": header.relation.value if header.relation else None,
        "created_at_ms": header.created_at_ms,
        "reward": example.reward,
        "rating": example.rating,
        "metadata": header.metadata or None,
    }


def header_from(row: JSONObject, tool_names: tuple[str, ...], whole: JSONObject) -> Header:
    """The header of an imported row. One without an id of ours gets one made from the `whole` row.

    So reading the same file again gives the same ids.
    """
    created_at_ms = row.get("created_at_ms")
    created = created_at_ms if isinstance(created_at_ms, int) else 0
    metadata = row.get("metadata")
    relation = row.get("relation")
    return Header(
        id=content_id(row.get("id"), created, whole),
        source=_source(row.get("source")),
        model=_text(row.get("model")) or "unknown",
        created_at_ms=created,
        run_id=_text(row.get("run_id")),
        task_id=_text(row.get("task_id")),
        parent_id=_text(row.get("parent_id")),
        relation=Relation(relation) if relation in _RELATIONS else None,
        tools=tool_names,
        metadata=metadata if isinstance(metadata, dict) else {},
    )


def outcome_from(row: JSONObject) -> Outcome | None:
    """The recorded outcome; None if the row has none that makes sense."""
    recorded = row.get("outcome")
    if isinstance(recorded, dict):
        try:
            return Outcome.from_json(recorded)
        except (KeyError, ValueError):
            return None
    if row.get("completed") is False:
        return Outcome(StopReason.CUT, Boundary.HOST, detail="imported as not completed")
    return None


def number_from(row: JSONObject, name: str) -> float | None:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


_SOURCES, _RELATIONS = frozenset(Source), frozenset(Relation)


def content_id(candidate: JSON, created_at_ms: int, content: JSON) -> str:
    """The id given, if it is one of ours; else one that depends on time and content alone."""
    if (
        isinstance(candidate, str)
        and len(candidate) == 26
        and candidate.isalnum()
        and candidate.upper() == candidate
    ):
        return candidate
    digest = hashlib.blake2b(canonical_json([candidate, content]).encode("utf-8"), digest_size=10).digest()
    value = (max(created_at_ms, 0) << 80) | int.from_bytes(digest, "big")
    return "".join([_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5)])


def _source(name: JSON) -> Source:
    return Source(name) if name in _SOURCES else Source.IMPORT


def _text(value: JSON) -> str | None:
    return value if isinstance(value, str) else None
