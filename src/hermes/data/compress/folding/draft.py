"""A conversation while it is being folded.

A `FoldingDraft` takes one thing away at a time, in the stages that fold.py puts in order, and estimates what
each step saved. It is counted exactly, whole, when it is asked whether it fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hermes.core import Message, Role, content_hash
from hermes.data.compress.counting.tokens import Counter, Measure
from hermes.data.compress.folding import plan, state
from hermes.data.compress.folding.facts import facts_by_output
from hermes.data.compress.folding.plan import FoldSettings, Strategy
from hermes.data.compress.folding.result import Fold, Folded, Span
from hermes.data.compress.folding.state import FoldLevel
from hermes.data.compress.forms.conversation import RowConversation, ToolExchange

_CHARS_PER_TOKEN = 3
_MIN_STATE_TOKENS = 48
_WORTH = 0.9
"""A state that is longer than this share of what it replaces is not worth it."""


class FoldingDraft:
    """The conversation while it is being folded."""

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
        self._messages: list[Message | None] = list(conversation.messages)
        self._keep = plan.protected(conversation, settings.protect_last_turns)
        self._folds: dict[tuple[int, str], int] = {}
        """What was folded, and the tokens that it had."""
        self._wanted: dict[int, Span] = {}
        """By the message that the state is to stand in."""
        self._reserved: dict[int, float] = {}
        """Tokens that a state yet to be written may take beyond what stands there now."""
        self.original, each = self._measure(self._messages)
        self._exact: float = self.original
        self._saved = 0.0
        self._changed = False
        self._tokens = _by_message(conversation, self._messages, each)
        self._now = list(self._tokens)
        self._facts: dict[int, dict[str, int]] | None = None

    def seems_to_fit(self) -> bool:
        """By the estimate."""
        return self._exact - self._saved + sum(self._reserved.values()) <= self._settings.target_max_tokens

    def fits(self) -> bool:
        """By an exact count."""
        if self._changed:
            self._exact = self._exact_count(self._messages)
            self._saved = 0.0
            self._changed = False
        return self.seems_to_fit()

    def result(self) -> Folded:
        fits = self.fits()
        facts = self._all_facts()
        changed = "\n".join(
            now.content
            for now, old in zip(self._messages, self._conversation.messages, strict=True)
            if now is not None and now is not old
        )
        kept = sum(
            self._messages[i] is self._conversation.messages[i] or fact in changed
            for i, stated in facts.items()
            for fact in stated
        )
        return Folded(
            messages=tuple(self._messages),
            original_tokens=self.original,
            tokens=int(self._exact),
            fits=fits,
            folds=tuple(self._map()),
            wanted=tuple(self._wanted.values()),
            facts=sum(map(len, facts.values())),
            facts_kept=kept,
        )

    def _map(self) -> Iterator[Fold]:
        now = _by_message(self._conversation, self._messages, self._measure(self._messages).each)
        for (i, kind), tokens in sorted(self._folds.items()):
            kept_tokens = round(now[i]) if kind == "tool_output" else 0
            yield Fold(i, kind, tokens, kept_tokens, i in self._keep)

    @property
    def protects_outputs(self) -> bool:
        """Whether there are tool outputs in protected turns."""
        return any(self._conversation.messages[i].role is Role.TOOL for i in self._keep)

    def fold_outputs(self, level: FoldLevel, *, protected: bool) -> Iterator[None]:
        """Folds the outputs outside the protected turns, or those inside them."""
        messages = self._conversation.messages
        for i in plan.output_order(messages, self._keep, self._tokens, protected=protected):
            message = self._messages[i]
            if message is None or (level is not FoldLevel.STATE and not self._is_worth(i)):
                continue
            limit = self._state_limit(self._tokens[i])
            if level is FoldLevel.STATE and limit >= _WORTH * self._tokens[i]:
                continue
            facts = tuple(self._all_facts().get(i, {}))
            content = messages[i].content
            span = None
            if level is FoldLevel.STATE and self._settings.strategy is Strategy.SUMMARISE:
                span = _span(content, facts, limit)
            text = state.fold_output(message.content, facts, level, limit * _CHARS_PER_TOKEN)
            if self._place(i, text, span, 0):
                yield

    def drop_thinking(self) -> Iterator[None]:
        order = plan.thinking_order(self._conversation.messages, self._keep)
        if not order or not self._thinking_counts(order):
            return
        for i in order:
            message = self._messages[i]
            if message is None or message.reasoning is None:
                continue
            tokens = self._now[i] * len(message.reasoning) / (1 + _chars(message))
            self._messages[i] = replace(message, reasoning=None)
            self._note(i, "reasoning", tokens)
            self._take(i, self._now[i] - tokens)
            yield

    def merge_exchanges(self) -> Iterator[None]:
        by_model = self._settings.strategy is not Strategy.FOLD
        for run in plan.exchange_runs(self._conversation, self._keep):
            for count in range(2, len(run) + 1):
                gone = run[count - 1]
                for i in (gone.asked, *gone.results):
                    self._leave_out(i, "exchange")
                self._tell_of(run[:count], by_model)
                yield

    def drop_instructions(self) -> Iterator[None]:
        for span in plan.later_instructions(self._conversation.messages, self._keep):
            for i in span:
                self._leave_out(i, "instruction")
            yield

    def _tell_of(self, merged: Sequence[ToolExchange], by_model: bool) -> None:
        """Puts the state of the merged exchanges into the first one's first result."""
        messages = self._conversation.messages
        first, last = merged[0], merged[-1]
        results = [i for exchange in merged for i in exchange.results]
        facts = tuple(
            fact
            for i in results
            for fact, use in self._all_facts().get(i, {}).items()
            if use > last.results[-1]
        )
        calls = [call for exchange in merged[1:] for call in messages[exchange.asked].tool_calls]
        limit = self._settings.summary_target_tokens
        outputs = [messages[i].content for i in results]
        text = state.fold_exchanges(outputs, calls, facts, len(merged), limit * _CHARS_PER_TOKEN)
        span = _span(_told(messages, merged), facts, limit) if by_model else None
        self._place(first.results[0], text, span, len(merged), force=True)

    def _place(self, i: int, text: str, span: Span | None, exchanges: int, *, force: bool = False) -> bool:
        """Puts a state in the place of an output, if that makes it shorter."""
        message = self._messages[i]
        assert message is not None
        self._wanted.pop(i, None)
        self._reserved.pop(i, None)
        if span is not None and span.key in self._summaries:
            text = state.with_summary(span.content, self._summaries[span.key], exchanges=exchanges)
        tokens = self._estimate(i, text)
        if not force and span is None and len(text) >= _WORTH * len(message.content):
            return False
        if span is not None and span.key not in self._summaries:
            self._wanted[i] = span
            self._reserved[i] = max(0, span.max_tokens + _WRAPPING_TOKENS - tokens)
        self._messages[i] = replace(message, content=text)
        self._note(i, "tool_output")
        self._take(i, tokens)
        return True

    def _leave_out(self, i: int, kind: str) -> None:
        self._messages[i] = None
        self._wanted.pop(i, None)
        self._reserved.pop(i, None)
        for key in [key for key in self._folds if key[0] == i]:
            del self._folds[key]
        self._note(i, kind)
        self._take(i, 0)

    def _take(self, i: int, tokens: float) -> None:
        self._saved += self._now[i] - tokens
        self._now[i] = tokens
        self._changed = True

    def _note(self, i: int, kind: str, tokens: float | None = None) -> None:
        self._folds[i, kind] = round(self._tokens[i] if tokens is None else tokens)

    def _measure(self, messages: Sequence[Message | None]) -> Measure:
        form = self._conversation.form
        turns = form.turns(messages)
        texts = [str(turn.get("value", turn.get("content")) or "") for turn in turns]
        return self._counter.measure(form.chat(turns, self._counter.result_role), texts, form.tools)

    def _exact_count(self, messages: Sequence[Message | None]) -> int:
        form = self._conversation.form
        chat = form.chat(form.turns(messages), self._counter.result_role)
        return self._counter.conversation(chat, form.tools)

    def _thinking_counts(self, order: Sequence[int]) -> bool:
        """Whether the template shows the thinking at all; some leave out that of earlier turns."""
        self.fits()  # counts what changed since it was counted last
        without: list[Message | None] = list(self._messages)
        for i in order:
            message = without[i]
            without[i] = message and replace(message, reasoning=None)
        return self._exact_count(without) < self._exact

    def _estimate(self, i: int, text: str) -> float:
        """Tokens of a text in the place of message i, if it is about as dense as what stood there."""
        density = self._tokens[i] / (1 + len(self._conversation.messages[i].content))
        return len(text) * min(max(density, 1 / _CHARS_PER_TOKEN), 1.0)

    def _is_worth(self, i: int) -> bool:
        return self._now[i] > _MIN_STATE_TOKENS // 2

    def _state_limit(self, tokens: float) -> int:
        return min(self._settings.summary_target_tokens, max(_MIN_STATE_TOKENS, int(tokens / 4)))

    def _all_facts(self) -> dict[int, dict[str, int]]:
        if self._facts is None:
            self._facts = facts_by_output(self._conversation.messages)
        return self._facts


_WRAPPING_TOKENS = 24
"""Of a state around its summary."""


def _span(content: str, facts: tuple[str, ...], max_tokens: int) -> Span:
    fitting = state.fitting(facts, max_tokens * _CHARS_PER_TOKEN // 2)
    text = "\0".join((content, *fitting, str(max_tokens)))
    return Span(content_hash(text), content, tuple(fitting), max_tokens)


def _told(messages: Sequence[Message], merged: Sequence[ToolExchange]) -> str:
    """The exchanges as text for a model to read."""
    parts = []
    for exchange in merged:
        asked = messages[exchange.asked]
        parts += [asked.content] if asked.content else []
        parts += [f"call: {call.name} {call.arguments}" for call in asked.tool_calls]
        parts += [f"result: {messages[i].content}" for i in exchange.results]
    return "\n".join(parts)


def _by_message(
    conversation: RowConversation, messages: Sequence[Message | None], each: Sequence[int]
) -> list[float]:
    """The tokens of each turn that is left, divided among its messages by their length; 0 for those gone."""
    turn_of = conversation.form.turn_of
    sizes = [0 if message is None else 1 + _chars(message) for message in messages]
    whole: dict[int, int] = {}
    for turn, size in zip(turn_of, sizes, strict=True):
        whole[turn] = whole.get(turn, 0) + size
    # A turn that no message is in is the system turn that tells of tools; it is always there.
    first = min(turn_of, default=0)
    left = [turn for turn, size in whole.items() if size]
    tokens = dict(zip(left, each[first:], strict=True))
    return [
        tokens[turn] * size / whole[turn] if size else 0.0 for turn, size in zip(turn_of, sizes, strict=True)
    ]


def _chars(message: Message) -> int:
    arguments = sum(len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + arguments
