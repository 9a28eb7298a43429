"""Between the nouns and their rows: JSON text, and packed arrays for token ids."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import unicodedata
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TypeVar

from hermes.core import (
    Boundary,
    Header,
    Message,
    ModelCall,
    Outcome,
    Relation,
    Source,
    Step,
    StepKind,
    StopReason,
    TokenTrace,
    ToolResult,
)
from hermes.core.json import JSON
from hermes.errors import StoreError
from hermes.store.sqlite import DAMAGE_HINT

Decoded = TypeVar("Decoded")
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error)


@contextmanager
def decoding(part: str) -> Iterator[None]:
    """StoreError: what the row holds is not what was written."""
    try:
        yield
    except _DAMAGE as error:
        raise _damaged(part, error) from error


def _damaged(part: str, error: Exception) -> StoreError:
    reason = " ".join(str(error).split())[:200]
    return StoreError(f"the store is damaged: {part} cannot be decoded ({reason})", DAMAGE_HINT)


def _decoder(part: str) -> Callable[[Callable[[sqlite3.Row], Decoded]], Callable[[sqlite3.Row], Decoded]]:
    """`decoding` for a function of one row, without a context for each of them."""

    def decorate(decode: Callable[[sqlite3.Row], Decoded]) -> Callable[[sqlite3.Row], Decoded]:
        @wraps(decode)
        def decode_row(row: sqlite3.Row) -> Decoded:
            try:
                return decode(row)
            except _DAMAGE as error:
                raise _damaged(part, error) from error

        return decode_row

    return decorate


def pack_ints(values: Sequence[int]) -> bytes:
    """Little-endian 32-bit, deflated: prompts repeat themselves from call to call."""
    return zlib.compress(_little_endian(array("i", values)), 1)


def unpack_ints(data: bytes) -> tuple[int, ...]:
    return tuple(_from_little_endian("i", zlib.decompress(data)))


def pack_floats(values: Sequence[float]) -> bytes:
    """Little-endian float32: the precision that models compute in."""
    return _little_endian(array("f", values))


def unpack_floats(data: bytes) -> tuple[float, ...]:
    return tuple(_from_little_endian("f", data))


def _little_endian(values: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _from_little_endian(code: str, data: bytes) -> array[int]:
    values: array[int] = array(code, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


@_decoder("a trajectory")
def decode_header(row: sqlite3.Row) -> Header:
    return Header(
        id=row["id"],
        source=Source(row["source"]),
        model=row["model"],
        created_at_ms=row["created_at_ms"],
        session_id=row["session_id"],
        run_id=row["run_id"],
        task_id=row["task_id"],
        sample_index=row["sample_index"],
        parent_id=row["parent_id"],
        relation=Relation(row["relation"]) if row["relation"] else None,
        tools=tuple(json.loads(row["tools"])),
        config=json.loads(row["config"]),
        metadata=json.loads(row["metadata"]),
    )


@_decoder("an outcome")
def decode_outcome(row: sqlite3.Row) -> Outcome:
    return Outcome(
        StopReason(row["stop_reason"]),
        Boundary(row["boundary"]) if row["boundary"] else None,
        row["error_type"],
        row["detail"],
    )


@_decoder("a step")
def decode_step(row: sqlite3.Row) -> Step:
    kind = StepKind(row["kind"])
    call = result = None
    if kind is StepKind.MODEL:
        raw = json.loads(row["raw"]) if row["raw"] else None
        call = ModelCall.from_json(json.loads(row["body"]), raw, decode_tokens(row))
    elif kind is StepKind.TOOL:
        result = ToolResult.from_json(json.loads(row["body"]))
    return Step(
        index=row["idx"],
        kind=kind,
        message=Message.from_json(json.loads(row["message_body"])),
        started_at_ms=row["started_at_ms"],
        call=call,
        result=result,
        ephemeral=bool(row["ephemeral"]),
    )


def decode_tokens(row: sqlite3.Row) -> TokenTrace | None:
    if row["sampled_ids"] is None:
        return None
    return TokenTrace(
        unpack_ints(row["prompt_ids"]),
        unpack_ints(row["sampled_ids"]),
        unpack_floats(row["logprobs"]),
        row["policy_version"],
    )


def search_text(message: Message) -> str:
    """The text of a message that full-text search indexes: content, thinking, calls and results."""
    parts = [plain_text(message.content), message.reasoning or ""]
    parts += [f"{call.name} {plain_text(call.arguments)}" for call in message.tool_calls]
    return "\n".join(part for part in parts if part)


def plain_text(text: str) -> str:
    """The names and values of a JSON object or list without JSON's escapes; any other text verbatim."""
    try:
        return " ".join(_plain_texts(json.loads(text))) if text[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        return text


def _plain_texts(value: JSON) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _plain_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _plain_texts(item)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


_UNSPACED = re.compile(
    "([\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Tibetan, Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"  # Han
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")
_ESCAPED = re.compile(r"(?:\\+u[0-9a-fA-F]{4})+")


def index_text(body: str) -> str:
    """A stored message as the full-text index takes it."""
    return storable(searchable(search_text(Message.from_json(json.loads(body)))))


def storable(text: str) -> str:
    """The text as SQLite can store it, which is UTF-8: a lone surrogate has no such form and is replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def searchable(text: str) -> str:
    """The text as the index, queries and curation divide it into words.

    A space around each character of a script that does not separate words makes it a word of its own, so that
    a word of two characters is found as well (SQLite's trigrams begin at three). Characters are normalised
    (NFKC), invisible ones left out, and those that a JSON text within the text spells `\\u82f9` are read.
    """
    if "\\u" in text:
        text = _ESCAPED.sub(_unescaped, text)
    if text.isascii():
        return text
    return _UNSPACED.sub(r" \1 ", _INVISIBLE.sub("", unicodedata.normalize("NFKC", text)))


def _unescaped(escapes: re.Match[str]) -> str:
    return bytes.fromhex(re.sub(r"\\+u", "", escapes[0])).decode("utf-16-be", "replace")
