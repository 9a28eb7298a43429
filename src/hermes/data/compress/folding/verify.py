"""What every compressed conversation must satisfy, checked on each one before it is written.

Folding is built so that no check here can fail; a row for which one does is kept aside, because a broken
training row costs more than a missing one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from hermes.core import Message, Role
from hermes.data.compress.folding import plan
from hermes.data.compress.folding.plan import Folded, FoldSettings
from hermes.data.compress.folding.state import is_state
from hermes.data.compress.forms.conversation import RowConversation


def violations(conversation: RowConversation, folded: Folded, settings: FoldSettings) -> Iterator[str]:
    """One line for each promise that is broken."""
    old, new = conversation.messages, folded.messages
    if folded.tokens > settings.target_max_tokens:
        yield f"{folded.tokens} tokens are over the target"
    for i in sorted(plan.protected(conversation, settings.protect_last_turns)):
        output_folded = old[i].role is Role.TOOL and new[i] is not None and not settings.strict_protect
        if new[i] is not old[i] and not output_folded:
            yield f"message {i} is protected and was changed"
    for exchange in conversation.exchanges:
        dropped = [new[i] is None for i in (exchange.call, *exchange.results)]
        if any(dropped) and not all(dropped):
            yield f"the call of message {exchange.call} and its results were parted"
    for i, (before, after) in enumerate(zip(old, new, strict=True)):
        if after is not None and after is not before:
            yield from _message_violations(i, before, after)
    yield from _instruction_violations(old, new)
    strange = _role_pairs([message for message in new if message is not None]) - _role_pairs(old)
    if strange:
        yield f"roles follow one another as they never did before: {sorted(strange)}"


def _message_violations(i: int, before: Message, after: Message) -> Iterator[str]:
    if before.role is Role.TOOL:
        if (after.role, after.tool_call_id, after.name) != (before.role, before.tool_call_id, before.name):
            yield f"result {i} no longer answers its call"
        if not is_state(after.content):
            yield f"result {i} was changed into something that is no folded state"
    elif before.role is not Role.ASSISTANT:
        yield f"message {i} of the {before.role.value} was changed"
    elif (after.content, after.tool_calls) != (before.content, before.tool_calls):
        yield f"the decision of message {i} was changed"


def _instruction_violations(old: Sequence[Message], new: Sequence[Message | None]) -> Iterator[str]:
    """A user message is left out only together with everything up to the next one."""
    left_out = False
    for i, (before, after) in enumerate(zip(old, new, strict=True)):
        if before.role is Role.USER:
            left_out = after is None
        elif left_out and after is not None:
            yield f"message {i} lost the instruction before it"


def _role_pairs(messages: Sequence[Message]) -> set[tuple[str, str]]:
    return {(a.role.value, b.role.value) for a, b in pairwise(messages)}
