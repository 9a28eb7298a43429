"""One row through the compressor: text in, text out. What worker processes run, and nothing else does I/O.

A row that fits is passed on with its figures added; one that carries figures already was compressed before
and is passed on as it is, to the byte. A row that cannot be brought under the target is kept aside as it
was, with the reason. Text that cannot be read as a row is reported by its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hermes.core import JSONObject, Message, Relation, canonical_json, content_hash
from hermes.data.compress.counting.tokens import Counter
from hermes.data.compress.folding.fold import fold
from hermes.data.compress.folding.plan import Folded, FoldSettings, Strategy, SummaryRequest, violations
from hermes.data.compress.forms.conversation import (
    Edited,
    RowConversation,
    RowError,
    read_messages,
    read_record,
)
from hermes.data.compress.forms.sharegpt import read_sharegpt
from hermes.data.compress.run.metrics import NOTHING, SummaryCost, fold_map, row_metrics
from hermes.data.lines import encode_row
from hermes.models.render.jinja import TemplateRefusalError

_SURROGATE = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")
"""Half of a pair, as itself or escaped; a whole pair that is escaped matches too, which does no harm."""
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_STAMP_CHARS = 10


class InputKind(StrEnum):
    ROW = "row"
    ASIDE = "aside"
    """Readable, but not within the target."""
    BAD = "bad"
    """Not readable as a row."""
    PENDING = "pending"
    """Not finished: a model has to write states first."""


@dataclass(frozen=True, slots=True)
class CompressItem:
    """One row to compress."""

    where: str
    """For messages: file and line, or the trajectory's id."""
    text: str
    """The row as JSON; without its conversation where `record` has it."""
    record: JSONObject | None = None
    """For a stored trajectory: `messages` and `tools`, as the store has them."""
    broken: str = ""
    """Why it cannot even be parsed, where that is known already."""
    share: float = 0.0
    """How far through the input this row ends, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class CompressResult:
    """Its end."""

    kind: InputKind
    line: str = ""
    """The row to write, as one line of JSON."""
    reason: str = ""
    metrics: JSONObject = field(default_factory=dict)
    pending: tuple[SummaryRequest, ...] = ()
    messages: tuple[JSONObject | None, ...] | None = None
    """For a stored trajectory that was compressed: its messages now, at their old places."""
    derived_id: str = ""
    notes: JSONObject = field(default_factory=dict)
    """For a stored trajectory that was compressed: the notes in its row's metadata."""


def compress(
    item: CompressItem,
    settings: FoldSettings,
    counter: Counter,
    summaries: Mapping[str, str] | None = None,
    cost: SummaryCost = NOTHING,
) -> CompressResult:
    """`summaries` are states that a model wrote, by their keys; `cost` is what they took."""
    try:
        if item.broken:
            raise RowError(item.broken)
        row = _parse(item.text)
        return _CompressJob(
            item, row, _read(row, item.record), settings, counter, summaries or {}, cost
        ).run()
    except (RowError, TemplateRefusalError) as error:
        return CompressResult(InputKind.BAD, item.text, f"{item.where}: {error.message}")


def _parse(text: str) -> JSONObject:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise RowError("not a JSON object")
    return _without_surrogates(row, text)


def _without_surrogates(data: JSONObject, text: str) -> JSONObject:
    """The same without lone surrogates, which neither tokenizers nor loaders take."""
    return encode_row(data).row if _SURROGATE.search(text) else data


def _read(row: JSONObject, record: JSONObject | None) -> RowConversation:
    if record is not None:
        clean = _without_surrogates(record, json.dumps(record))
        return read_record([Message.from_json(data) for data in clean["messages"]], clean["tools"])
    if "conversations" in row:
        return read_sharegpt(row["conversations"])
    if "messages" in row:
        return read_messages(row)
    raise RowError("it has neither 'conversations' nor 'messages', and is neither a record nor ATIF")


@dataclass(frozen=True)
class _CompressJob:
    """One readable row, and how it is to be compressed."""

    item: CompressItem
    row: JSONObject
    conversation: RowConversation
    settings: FoldSettings
    counter: Counter
    summaries: Mapping[str, str]
    cost: SummaryCost

    def run(self) -> CompressResult:
        folded = fold(self.conversation, self.settings, self.counter, self.summaries)
        if not folded.pending:
            return self._finish(folded)
        if folded.fits:
            return CompressResult(InputKind.PENDING, pending=folded.pending)
        # No model is called for a row that may not fit even with its states.
        by_rules = replace(self.settings, strategy=Strategy.FOLD)
        cost = replace(self.cost, fallback="states of the requested length would leave no room")
        return replace(self, settings=by_rules, cost=cost).run()

    def _finish(self, folded: Folded) -> CompressResult:
        broken = list(violations(self.conversation, folded, self.settings)) if folded.fits else []
        if broken or not folded.fits:
            return self._keep_aside(folded, "; ".join(broken))
        metrics = self._metrics(folded)
        if folded.folds:
            return self._derive(folded, metrics)
        if isinstance(self.row.get("compression_metrics"), dict):  # it was compressed before
            return CompressResult(InputKind.ROW, self.item.text.strip(), metrics=metrics)
        return CompressResult(InputKind.ROW, self._line({"compression_metrics": metrics}), metrics=metrics)

    def _keep_aside(self, folded: Folded, broken: str) -> CompressResult:
        reason = broken or _over_target_reason(self.conversation, folded, self.settings, self.counter)
        whole = Folded(self.conversation.messages, folded.original_tokens, folded.original_tokens, fits=False)
        metrics = self._metrics(whole)
        line = self._line({"kept_aside": reason, "compression_metrics": metrics})
        return CompressResult(InputKind.ASIDE, line, f"{self.item.where}: {reason}", metrics)

    def _derive(self, folded: Folded, metrics: JSONObject) -> CompressResult:
        parent = str(self.row.get("id") or f"row-{content_hash(canonical_json(self.row))}")
        identity = derived_id(parent, f"{parent}|{self.counter.name}|{self.settings}")
        notes: JSONObject = {
            "parent_id": parent,
            "target_max_tokens": self.settings.target_max_tokens,
            "tokenizer": self.counter.name,
            "strategy": self.settings.strategy.value,
            "protect_last_turns": self.settings.protect_last_turns,
            "strict_protect": self.settings.strict_protect,
            "original_tokens": folded.original_tokens,
            "compressed_tokens": folded.tokens,
            "map": fold_map(folded.folds),
        }
        changes: JSONObject = {
            "id": identity,
            "parent_id": parent,
            "relation": Relation.COMPRESSED.value,
            "metadata": {**_mapping(self.row.get("metadata")), "compression": notes},
            "compression_metrics": metrics,
        }
        now = tuple(None if message is None else message.to_json() for message in folded.messages)
        return CompressResult(
            InputKind.ROW,
            self._line(changes, folded.messages),
            metrics=metrics,
            messages=now if self.item.record is not None else None,
            derived_id=identity,
            notes=notes,
        )

    def _metrics(self, folded: Folded) -> JSONObject:
        return row_metrics(self.conversation, folded, self.settings, self.counter, self.cost)

    def _line(self, changes: JSONObject, messages: Edited | None = None) -> str:
        """The row with these changes, as one line of JSON."""
        form = self.conversation.form
        turns = form.turns(self.conversation.messages if messages is None else messages)
        return encode_row({**self.row, form.field: turns, **changes}).line


def _mapping(value: object) -> JSONObject:
    return value if isinstance(value, dict) else {} if value is None else {"value": value}


def derived_id(parent: str, how: str) -> str:
    """An id that is always the same for the same parent compressed in the same way.

    It begins with its parent's time, where the parent has one, so it sorts beside it.
    """
    stamp = (
        parent[:_STAMP_CHARS] if len(parent) == 26 and set(parent) <= set(_ALPHABET) else "0" * _STAMP_CHARS
    )
    value = int(content_hash(how), 16)
    return stamp + "".join(_ALPHABET[(value >> shift) & 31] for shift in range(0, 80, 5))


def _over_target_reason(
    conversation: RowConversation, folded: Folded, settings: FoldSettings, counter: Counter
) -> str:
    target = settings.target_max_tokens
    systems = [message.content for message in conversation.messages if message.role.value == "system"]
    alone = sum(counter.texts(systems))
    if alone > target:
        return f"the system prompt alone has {alone} tokens, the target is {target}"
    turns = f"the first turns and the last {settings.protect_last_turns}"
    protection = (
        f"{turns} stay as they are" if settings.strict_protect else f"of {turns} only tool outputs fold"
    )
    return (
        f"{folded.tokens} of {folded.original_tokens} tokens are left when everything that may be folded is, "
        f"the target is {target}: {protection}"
    )
