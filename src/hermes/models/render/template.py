"""A conversation as prompt text and tokens, by the model's own chat template.

Only the template may write control tokens. Text that merely spells one (`<|im_end|>` in a web page, say)
is encoded as ordinary characters, so that no content can end its own turn or open another. A rendering
therefore remembers which of its marks are only spelled.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject, Message, Role
from hermes.errors import ProviderError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FILL, _STOP = "\ue000", "\ue001"
"""Private-use characters that stand for a spelled mark while the template is at work."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the template writes it."""

    text: str
    spelled: tuple[tuple[int, int], ...] = ()
    """Where (start, end) the text holds a control token's name that the template did not write."""

    def continues(self, other: Rendered) -> bool:
        """True if this is `other` and more."""
        size = len(other.text)
        return self.text.startswith(other.text) and other.spelled == tuple(
            span for span in self.spelled if span[0] < size
        )

    def __add__(self, other: Rendered) -> Rendered:
        size = len(self.text)
        moved = tuple((start + size, end + size) for start, end in other.spelled)
        return Rendered(self.text + other.text, self.spelled + moved)


def encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """The prompt's ids, ending where the assistant is to speak."""
    turns = [{"role": message.role.value, "content": message.content} for message in messages]
    return encode(tokenizer, render(tokenizer, turns))


def render(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[JSONObject],
    tools: Sequence[JSONObject] = (),
    settings: JSONObject | None = None,
) -> Rendered:
    """The prompt as text. `tools` and `settings` (its variables) are for templates that know of them."""
    marks = control_marks(tokenizer)
    runs = re.findall(f"{_FILL}+", "\n".join(_texts([turns, tools, settings])))
    fill = _FILL * (1 + max(map(len, runs), default=0))
    names: list[str] = []

    def stand_in(found: re.Match[str]) -> str:
        names.append(found[0])
        return f"{fill}{len(names) - 1}{_STOP}"

    def veil(text: str) -> str:
        return marks.sub(stand_in, text)

    veiled = _template(tokenizer, _mapped(turns, veil), _mapped(tools, veil), _mapped(settings, veil))
    return _unveiled(veiled, re.compile(f"{fill}([0-9]+){_STOP}"), names)


def spelled_out(tokenizer: PreTrainedTokenizerBase, text: str) -> Rendered:
    """A piece of content: whatever control token it names is only spelled."""
    return Rendered(text, tuple(found.span() for found in control_marks(tokenizer).finditer(text)))


def encode(tokenizer: PreTrainedTokenizerBase, rendered: Rendered, start: int = 0) -> list[int]:
    """The ids of the text from `start` on."""
    ids: list[int] = []
    at = start
    for begin, end in (span for span in rendered.spelled if span[0] >= start):
        ids += _encode(tokenizer, rendered.text[at:begin])
        ids += _encode(tokenizer, rendered.text[begin:end], spelled=True)
        at = end
    return ids + _encode(tokenizer, rendered.text[at:])


def result_role(tokenizer: PreTrainedTokenizerBase) -> Role:
    """The role in which to tell tool results that are already written out.

    The tool's own, if the template treats it like any other; a template that wraps, moves or refuses tool
    turns gets them as the user's.
    """
    opening: list[JSONObject] = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]
    try:
        before, _, after = _template(tokenizer, [*opening, {"role": "user", "content": "C"}]).rpartition(
            "user"
        )
        told = _template(tokenizer, [*opening, {"role": "tool", "content": "C"}])
    except ProviderError:
        return Role.USER
    return Role.TOOL if told == f"{before}tool{after}" else Role.USER


def control_marks(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Matches the text of every control token."""
    marks = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)) or "(?!)")


def _unveiled(veiled: str, stand_in: re.Pattern[str], names: Sequence[str]) -> Rendered:
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    at = size = 0
    for found in stand_in.finditer(veiled):
        mark = names[int(found[1])]
        begin = size + found.start() - at
        size = begin + len(mark)
        pieces += (veiled[at : found.start()], mark)
        spans.append((begin, size))
        at = found.end()
    return Rendered("".join([*pieces, veiled[at:]]), tuple(spans))


def _mapped(value: JSON, change: Callable[[str], str]) -> JSON:
    """The same JSON with every text in it changed; names of keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    return value


def _texts(value: JSON) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _template(
    tokenizer: PreTrainedTokenizerBase, turns: JSON, tools: JSON = None, settings: JSON = None
) -> str:
    from jinja2 import TemplateError

    write = tokenizer.apply_chat_template
    given = settings or {}
    taken = sorted(given.keys() & {*inspect.signature(write).parameters, "messages", "tools"})
    if taken:
        raise ProviderError(f"'{taken[0]}' is not a variable that a conversation may give its template")
    try:
        text = write(turns, tools=tools or None, tokenize=False, add_generation_prompt=True, **given)
    except (TemplateError, ValueError) as error:
        raise ProviderError(f"the model's chat template refuses the conversation: {error}") from error
    return str(text)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, *, spelled: bool = False) -> list[int]:
    if not text:
        return []
    encoded = tokenizer(text, add_special_tokens=False, split_special_tokens=spelled, verbose=False)
    return list(encoded["input_ids"])
