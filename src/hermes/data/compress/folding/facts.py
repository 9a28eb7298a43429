"""What later turns need from earlier tool outputs.

A fact is a word that carries information of its own: a path, a name with an underscore or a dot, a number,
an id, a CamelCase name. A tool output's facts are those that it is the first to state and that the
assistant uses again later, in an answer or the arguments of a call. They are what a folded
output has to keep.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from hermes.core import JSON, Message, Role

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
