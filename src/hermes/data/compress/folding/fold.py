"""Folding one conversation until it fits. Pure but for counting: no clock, no files, no model.

One thing is folded at a time, and what it saves is estimated. The estimate decides only when to count: the
conversation is counted exactly, whole, whenever the estimate is within the target, after each stage, and at
every step that costs a decision. Where states are written by a model, the first pass reserves room for their
longest form and returns the requests for them; a second pass with the texts then cannot need more room.

A folded tool output keeps the facts that later turns need. A fact is a word that carries information of its
own: a path, a name with an underscore or a dot, a number, an id, a CamelCase name. A tool output's facts are
those that it is the first to state and that the assistant uses again later, in an answer or the arguments of
a call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from hermes.core import JSON, Message, Role, content_hash
from hermes.data.compress.counting.tokens import Counter, Measure
from hermes.data.compress.folding import plan, state
from hermes.data.compress.folding.plan import Fold, Folded, FoldSettings, Strategy, SummaryRequest
from hermes.data.compress.folding.state import FoldLevel
from hermes.data.compress.forms.conversation import RowConversation, ToolExchange

_CHARS_PER_TOKEN = 3
_MIN_STATE_TOKENS = 48
_WRAPPING_TOKENS = 24
"""The tokens that a state adds around its summary."""
_SPARE = 0.05
"""Share of the target that may stay unused."""
_TRIES = 4
"""Counts that an excerpt may take to fit."""
_WORTH = 0.9
"""A state that is longer than this share of what it replaces is not used."""


def fold(
    conversation: RowConversation,
    settings: FoldSettings,
    counter: Counter,
    summaries: Mapping[str, str] | None = None,
) -> Folded:
    """The conversation within the target, or as near to it as folding gets."""
    folding = _Folding(conversation, settings, counter, summaries or {})
    if folding.fits():
        tokens = folding.original_tokens
        return Folded(conversation.messages, tokens, tokens, fits=True)
    if folding.fold_without_decisions((False,)):
        return folding.result()
    if folding.has_protected_outputs and not settings.strict_protect:
        # The row cannot fit with these outputs whole. Folding starts anew with all outputs on the same
        # footing, so that the earlier ones keep the room that the protected ones give up.
        folding = _Folding(conversation, settings, counter, summaries or {})
        if folding.fold_without_decisions((False, True)):
            return folding.result()
    if not folding.merge_exchanges():
        folding.drop_instructions()
    return folding.result()


class _Tokens:
    """The tokens of the conversation: the last exact count, and an estimate of what was saved since."""

    def __init__(self, measured: int, by_message: Sequence[float]) -> None:
        self.counted = measured
        self.original = tuple(by_message)
        """The tokens of each message, before anything was folded."""
        self.current = list(by_message)
        self.reserved: dict[int, float] = {}
        """Tokens that a state yet to be written may take beyond the text that is there now."""
        self._saved = 0.0
        self.is_exact = True

    def change(self, i: int, tokens: float) -> None:
        """Message i has this many tokens now."""
        self._saved += self.current[i] - tokens
        self.current[i] = tokens
        self.is_exact = False

    def recount(self, counted: int) -> None:
        self.counted = counted
        self._saved = 0.0
        self.is_exact = True

    def estimate(self) -> float:
        return self.counted - self._saved + sum(self.reserved.values())


class _Folding:
    """A conversation while it is being folded. A stage returns whether the conversation fits."""

    def __init__(
        self,
        conversation: RowConversation,
        settings: FoldSettings,
        counter: Counter,
        summaries: Mapping[str, str],
    ) -> None:
        self._conversation = conversation
        self._settings = settings
        self._counter = counter
        self._summaries = summaries
        self._protected = plan.protected(conversation, settings.protect_last_turns)
        self._messages: list[Message | None] = list(conversation.messages)
        self._folds: dict[tuple[int, str], int] = {}
        """The folded messages, by kind, and the tokens that they had."""
        self._pending: dict[int, SummaryRequest] = {}
        """States to be written, by the message that will hold them."""
        self.original_tokens, turns = self._measure()
        self._tokens = _Tokens(self.original_tokens, _by_message(conversation, self._messages, turns))

    @property
    def has_protected_outputs(self) -> bool:
        """Whether there are tool outputs in protected turns."""
        return any(self._conversation.messages[i].role is Role.TOOL for i in self._protected)

    @cached_property
    def _facts(self) -> dict[int, dict[str, int]]:
        return facts_by_output(self._conversation.messages)

    def fits(self) -> bool:
        """By an exact count."""
        if not self._tokens.is_exact:
            self._tokens.recount(self._count(self._messages))
        return self._seems_to_fit()

    def result(self) -> Folded:
        fits = self.fits()
        if fits:
            self._refill()
        originals = self._conversation.messages
        changed = "\n".join(
            message.content
            for message, original in zip(self._messages, originals, strict=True)
            if message is not None and message is not original
        )
        facts_kept = sum(
            self._messages[i] is originals[i] or fact in changed
            for i, facts in self._facts.items()
            for fact in facts
        )
        return Folded(
            messages=tuple(self._messages),
            original_tokens=self.original_tokens,
            tokens=self._tokens.counted,
            fits=fits,
            folds=tuple(self._fold_map()),
            pending=tuple(self._pending.values()),
            facts=sum(map(len, self._facts.values())),
            facts_kept=facts_kept,
        )

    def _refill(self) -> None:
        """Gives the room that is left to the outputs that were folded last: more of them went than had to."""
        for i, kind in reversed(list(self._folds)):
            if self._spare() < _SPARE * self._settings.target_max_tokens:
                return
            if kind == "tool_output" and i not in self._pending:
                self._add_excerpt(i)

    def _add_excerpt(self, i: int) -> None:
        folded, original = self._messages[i], self._conversation.messages[i]
        assert folded is not None
        tokens, counted, spare = self._tokens.current[i], self._tokens.counted, self._spare()
        share = min(_WORTH, spare / max(1.0, self._tokens.original[i]))
        chars = int(share * len(original.content))
        for _ in range(_TRIES):
            text = state.with_excerpt(folded.content, original.content, chars)
            if text == folded.content:
                return
            self._messages[i] = replace(folded, content=text)
            self._tokens.change(i, self._estimate(i, text))
            if self.fits():
                return
            used = spare - self._spare()
            self._messages[i] = folded
            self._tokens.recount(counted)
            self._tokens.current[i] = tokens
            chars = int(chars * 0.95 * spare / used)

    def _spare(self) -> float:
        """Tokens up to the target."""
        return self._settings.target_max_tokens - self._tokens.estimate()

    def fold_without_decisions(self, protection: Sequence[bool]) -> bool:
        """Folds outputs and thinking. At each level the outputs of `protection` are folded, in its order."""
        levels = [FoldLevel.STATE]
        if self._settings.strategy is not Strategy.SUMMARISE:  # it would replace a model's text by bare words
            levels.append(FoldLevel.FACTS)
        return (
            self._fold_levels(levels, protection)
            or self._drop_thinking()
            or self._fold_levels([FoldLevel.BARE], protection)
        )

    def merge_exchanges(self) -> bool:
        for run in plan.exchange_runs(self._conversation, self._protected):
            for count in range(2, len(run) + 1):
                dropped = run[count - 1]
                for i in (dropped.call, *dropped.results):
                    self._leave_out(i, "exchange")
                self._put_merged_state(run[:count])
                if self.fits():
                    return True
        return False

    def drop_instructions(self) -> bool:
        for span in plan.later_instructions(self._conversation.messages, self._protected):
            for i in span:
                self._leave_out(i, "instruction")
            if self.fits():
                return True
        return False

    def _fold_levels(self, levels: Sequence[FoldLevel], protection: Sequence[bool]) -> bool:
        for level in levels:
            for protected in protection:
                if self._fold_outputs(level, protected=protected):
                    return True
        return False

    def _fold_outputs(self, level: FoldLevel, *, protected: bool) -> bool:
        """Folds the outputs outside the protected turns, or those inside them."""
        messages, tokens = self._conversation.messages, self._tokens.original
        for i in plan.output_order(messages, self._protected, tokens, protected=protected):
            if self._fold_output(i, level) and self._seems_to_fit() and self.fits():
                return True
        return self.fits()

    def _fold_output(self, i: int, level: FoldLevel) -> bool:
        """Whether the output was worth folding."""
        message = self._messages[i]
        tokens = self._tokens.original[i]
        limit = self._state_limit(tokens)
        if message is None:
            return False
        if level is FoldLevel.STATE and limit >= _WORTH * tokens:
            return False
        if level is not FoldLevel.STATE and self._tokens.current[i] <= _MIN_STATE_TOKENS // 2:
            return False
        facts = tuple(self._facts.get(i, {}))
        request = None
        if level is FoldLevel.STATE and self._settings.strategy is Strategy.SUMMARISE:
            request = _summary_request(self._conversation.messages[i].content, facts, limit)
        text = state.fold_output(message.content, facts, level, limit * _CHARS_PER_TOKEN)
        if request is None and len(text) >= _WORTH * len(message.content):
            self._cancel_request(i)
            return False
        self._put_state(i, text, request, exchanges=0)
        return True

    def _drop_thinking(self) -> bool:
        indices = plan.thinking_order(self._conversation.messages, self._protected)
        if not indices or not self._thinking_counts(indices):
            return self.fits()
        for i in indices:
            message = self._messages[i]
            if message is None or message.reasoning is None:
                continue
            current = self._tokens.current[i]
            tokens = current * len(message.reasoning) / (1 + _chars(message))
            self._messages[i] = replace(message, reasoning=None)
            self._folds[i, "reasoning"] = round(tokens)
            self._tokens.change(i, current - tokens)
            if self._seems_to_fit() and self.fits():
                return True
        return self.fits()

    def _put_merged_state(self, merged: Sequence[ToolExchange]) -> None:
        """Puts the state of the merged exchanges into the first one's first result."""
        messages = self._conversation.messages
        results = [i for exchange in merged for i in exchange.results]
        facts = tuple(
            fact
            for i in results
            for fact, last_use in self._facts.get(i, {}).items()
            if last_use > merged[-1].results[-1]
        )
        calls = [call for exchange in merged[1:] for call in messages[exchange.call].tool_calls]
        limit = self._settings.summary_target_tokens
        outputs = [messages[i].content for i in results]
        text = state.fold_exchanges(outputs, calls, facts, len(merged), limit * _CHARS_PER_TOKEN)
        request = None
        if self._settings.strategy is not Strategy.FOLD:
            request = _summary_request(_transcript(messages, merged), facts, limit)
        self._put_state(merged[0].results[0], text, request, exchanges=len(merged))

    def _put_state(self, i: int, text: str, request: SummaryRequest | None, *, exchanges: int) -> None:
        """Replaces an output by a state: the model's if its text is there, else by rules."""
        message = self._messages[i]
        assert message is not None
        self._cancel_request(i)
        if request is not None and request.key in self._summaries:
            text = state.with_summary(request.content, self._summaries[request.key], exchanges=exchanges)
        tokens = self._estimate(i, text)
        if request is not None and request.key not in self._summaries:
            self._pending[i] = request
            self._tokens.reserved[i] = max(0, request.max_tokens + _WRAPPING_TOKENS - tokens)
        self._messages[i] = replace(message, content=text)
        self._folds[i, "tool_output"] = round(self._tokens.original[i])
        self._tokens.change(i, tokens)

    def _leave_out(self, i: int, kind: str) -> None:
        self._messages[i] = None
        self._cancel_request(i)
        for key in [key for key in self._folds if key[0] == i]:
            del self._folds[key]
        self._folds[i, kind] = round(self._tokens.original[i])
        self._tokens.change(i, 0)

    def _cancel_request(self, i: int) -> None:
        self._pending.pop(i, None)
        self._tokens.reserved.pop(i, None)

    def _seems_to_fit(self) -> bool:
        return self._tokens.estimate() <= self._settings.target_max_tokens

    def _estimate(self, i: int, text: str) -> float:
        """Tokens of a text in message i, if it is about as dense as the original's."""
        density = self._tokens.original[i] / (1 + len(self._conversation.messages[i].content))
        return len(text) * min(max(density, 1 / _CHARS_PER_TOKEN), 1.0)

    def _state_limit(self, tokens: float) -> int:
        return min(self._settings.summary_target_tokens, max(_MIN_STATE_TOKENS, int(tokens / 4)))

    def _thinking_counts(self, indices: Sequence[int]) -> bool:
        """Whether the template renders the thinking at all; some leave out that of earlier turns."""
        self.fits()  # counts what changed since the last count
        without: list[Message | None] = list(self._messages)
        for i in indices:
            message = without[i]
            without[i] = message and replace(message, reasoning=None)
        return self._count(without) < self._tokens.counted

    def _fold_map(self) -> Iterator[Fold]:
        tokens = _by_message(self._conversation, self._messages, self._measure().by_turn)
        for (i, kind), original_tokens in sorted(self._folds.items()):
            kept_tokens = round(tokens[i]) if kind == "tool_output" else 0
            yield Fold(i, kind, original_tokens, kept_tokens, i in self._protected)

    def _measure(self) -> Measure:
        form = self._conversation.form
        turns = form.turns(self._messages)
        texts = [str(turn.get("value", turn.get("content")) or "") for turn in turns]
        return self._counter.measure(form.chat(turns, self._counter.result_role), texts, form.tools)

    def _count(self, messages: Sequence[Message | None]) -> int:
        form = self._conversation.form
        chat = form.chat(form.turns(messages), self._counter.result_role)
        return self._counter.conversation(chat, form.tools)


def _summary_request(content: str, facts: tuple[str, ...], max_tokens: int) -> SummaryRequest:
    required = state.take_fitting(facts, max_tokens * _CHARS_PER_TOKEN // 2)
    text = "\0".join((content, *required, str(max_tokens)))
    return SummaryRequest(content_hash(text), content, tuple(required), max_tokens)


def _transcript(messages: Sequence[Message], exchanges: Sequence[ToolExchange]) -> str:
    """The exchanges as text for a model to read."""
    parts = []
    for exchange in exchanges:
        message = messages[exchange.call]
        parts += [message.content] if message.content else []
        parts += [f"call: {call.name} {call.arguments}" for call in message.tool_calls]
        parts += [f"result: {messages[i].content}" for i in exchange.results]
    return "\n".join(parts)


def _by_message(
    conversation: RowConversation, messages: Sequence[Message | None], by_turn: Sequence[int]
) -> list[float]:
    """The tokens of each turn that is left, divided among its messages by their length; 0 for those left
    out."""
    turn_of = conversation.form.turn_of
    sizes = [0 if message is None else 1 + _chars(message) for message in messages]
    turn_sizes: dict[int, int] = {}
    for turn, size in zip(turn_of, sizes, strict=True):
        turn_sizes[turn] = turn_sizes.get(turn, 0) + size
    # A turn without a message is the system turn that describes the tools; it is always there.
    first = min(turn_of, default=0)
    turns = [turn for turn, size in turn_sizes.items() if size]
    tokens = dict(zip(turns, by_turn[first:], strict=True))
    return [
        tokens[turn] * size / turn_sizes[turn] if size else 0.0
        for turn, size in zip(turn_of, sizes, strict=True)
    ]


def _chars(message: Message) -> int:
    arguments = sum(len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + arguments


_WORD = re.compile(r"\w(?:[\w./~@-]*\w)?")
_INFORMATIVE = re.compile(r"[0-9_/.@]|[a-z][A-Z]|[A-Z]{3}")
_MAX_CHARS = 160


def facts_by_output(messages: Sequence[Message]) -> dict[int, dict[str, int]]:
    """For each tool message that has any: its facts in its own order, each with the index of its last use."""
    used = {
        i: words(assistant_text(message))
        for i, message in enumerate(messages)
        if message.role is Role.ASSISTANT
    }
    last_use = {word: index for index, used_words in used.items() for word in used_words if _is_fact(word)}
    stated: set[str] = set()
    facts: dict[int, dict[str, int]] = {}
    for index, message in enumerate(messages):
        there = used[index] if index in used else words(message.content)
        fresh = [word for word in filter(last_use.__contains__, there) if word not in stated]
        stated.update(fresh)
        needed = {word: last_use[word] for word in fresh if last_use[word] > index}
        if needed and message.role is Role.TOOL:
            facts[index] = needed
    return facts


def words(text: str) -> dict[str, None]:
    """The text's words, each once, in order."""
    # Results that hold JSON carry their line ends escaped; unescaped they would stick to the next word.
    plain = text.replace("\\n", " ").replace("\\t", " ").replace('\\"', " ") if "\\" in text else text
    return dict.fromkeys(_WORD.findall(plain))


def assistant_text(message: Message) -> str:
    """The content of an assistant message and the arguments of its calls, as plain text."""
    arguments = (text for call in message.tool_calls for text in _argument_texts(call.arguments))
    return "\n".join((message.content, *arguments))


def _is_fact(word: str) -> bool:
    if word.isdigit():
        return 2 <= len(word) <= _MAX_CHARS
    return 3 <= len(word) <= _MAX_CHARS and _INFORMATIVE.search(word) is not None


def _argument_texts(arguments: str) -> Iterator[str]:
    """The strings and numbers of a call's arguments; the raw text where it does not parse."""
    try:
        yield from _scalars(json.loads(arguments))
    except (ValueError, RecursionError):
        yield arguments


def _scalars(value: JSON) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _scalars(item)
    elif isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
