"""Exact token counts of whole conversations, for one tokenizer and its chat template.

The count is that of the rendered conversation as a trainer tokenises it: never a sum over messages. It is
cheap to repeat: most tokenizers cut a text at its added tokens before they do anything else,
so the count of the whole is exactly the sum over the pieces between them, and after a change only the
pieces that changed are counted again; word by word, where the tokenizer is known. Other tokenizers
count whole texts.

A `Counter` is not shared between threads; a `TokenizerSpec` is plain data and can be sent to other processes.

Words that a tokenizer never joins are tokenised only once. Byte-level tokenizers first split a text with a
regular expression, and no token crosses a split. If that expression is one of those below, ASCII text is
split in the same way here, and the count of a text is exactly the sum over its words. Text with other
characters, on which regular expression engines differ, is passed to the tokenizer unchanged, in stretches
that end before a space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from hermes.core import JSONObject, Role
from hermes.errors import UsageError
from hermes.models.render.jinja import ChatTemplate, TemplateRefusalError

_MEMORY_CHARS = 16_000_000
"""How much text the counts are remembered for; what many rows share (system prompts) is counted once."""


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Everything needed to count like one model does."""

    name: str
    """As the user gave it."""
    template: str
    """The chat template's Jinja source."""
    special: dict[str, str] = field(default_factory=dict)
    """Special tokens by the names that templates use."""
    tokenizer_json: str = ""
    """The tokenizer in the `tokenizers` library's own form; empty for a tiktoken encoding."""
    encoding: str = ""
    """Name of a tiktoken encoding."""


class Measure(NamedTuple):
    total: int
    """Tokens of the whole conversation; exact."""
    by_turn: list[int]
    """Tokens of each turn, near enough to compare them."""


class Counter:
    def __init__(self, spec: TokenizerSpec) -> None:
        self.name = spec.name
        self._template = ChatTemplate(spec.template, spec.special)
        self._encode, self._cut = _tiktoken(spec) if spec.encoding else _tokenizers(spec)
        self._known: dict[str, int] = {}
        self._known_chars = 0
        self.result_role = self._result_role()
        """The role of tool results that are written as text in this template."""

    def conversation(self, chat: Sequence[JSONObject], tools: Sequence[JSONObject] | None = None) -> int:
        """Tokens of the whole conversation; TemplateRefusalError if the template does not take it."""
        return sum(self._pieces(self._template.render(chat, tools))[1])

    def measure(
        self, chat: Sequence[JSONObject], texts: Sequence[str], tools: Sequence[JSONObject] | None = None
    ) -> Measure:
        """The same, and the share of each turn, whose text is given in `texts`."""
        pieces, counts = self._pieces(self._template.render(chat, tools))
        by_turn: list[int | None] = []
        at = 0
        for text in texts:
            index = next((i for i in range(at, len(pieces)) if text and pieces[i].endswith(text)), None)
            by_turn.append(None if index is None else counts[index])
            at = at if index is None else index + 1
        missing = iter(
            self.texts([text for text, count in zip(texts, by_turn, strict=True) if count is None])
        )
        return Measure(sum(counts), [next(missing) if count is None else count for count in by_turn])

    def texts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text by itself."""
        return [sum(self._pieces(text)[1]) for text in texts]

    def _pieces(self, text: str) -> tuple[list[str], list[int]]:
        """The rendered text in pieces, and the tokens of each. Their sum is the count of the whole."""
        if self._cut is None:
            return [text], self._count([text])
        # A group in the expression makes split return the added tokens too, at the odd positions.
        parts = self._cut.split(text)
        texts = parts[0::2]
        return texts, [count + 1 for count in self._count(texts[:-1])] + self._count(texts[-1:])

    def _count(self, texts: list[str]) -> list[int]:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if not new:
            return [self._known[text] for text in texts]
        self._known_chars += sum(map(len, new))
        if self._known_chars > _MEMORY_CHARS:
            self._known.clear()
            new = list(dict.fromkeys(texts))
            self._known_chars = sum(map(len, new))
        self._known.update(zip(new, self._encode(new), strict=True))
        return [self._known[text] for text in texts]

    def _result_role(self) -> Role:
        opening: list[JSONObject] = [
            {"role": "user", "content": "A"},
            {"role": "assistant", "content": "B"},
        ]
        try:
            self._template.render([*opening, {"role": "tool", "content": "C"}])
        except TemplateRefusalError:
            return Role.USER
        return Role.TOOL


def _tokenizers(spec: TokenizerSpec) -> tuple[Encode, re.Pattern[str] | None]:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(spec.tokenizer_json)
    except Exception as error:  # the library's only one
        raise UsageError(
            f"the tokenizer '{spec.name}' cannot be read: {error}", "name another tokenizer"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts: list[str]) -> list[int]:
        try:
            encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:  # lone surrogates, which every loader replaces by U+FFFD
            clean = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
            encodings = tokenizer.encode_batch_fast(clean, add_special_tokens=False)
        return [len(encoding) for encoding in encodings]

    form = json.loads(spec.tokenizer_json)
    cut = cutting_expression(form)
    # Added tokens may span words: only if they are cut out first can the rest be counted by words.
    words = word_expression(form) if cut else None
    return WordCounts(encode, words) if words else encode, cut


def _tiktoken(spec: TokenizerSpec) -> tuple[Encode, re.Pattern[str] | None]:
    import tiktoken

    encoding = tiktoken.get_encoding(spec.encoding)

    def encode(texts: list[str]) -> list[int]:
        return [len(encoding.encode_ordinary(text)) for text in texts]

    return encode, re.compile(f"({'|'.join(map(re.escape, spec.special.values()))})")


def cutting_expression(tokenizer: JSONObject) -> re.Pattern[str] | None:
    """The expression that cuts a text into pieces whose tokens can be counted separately; None if none is
    safe.

    Added tokens are taken out of a text first, the longest at each position, and the text between them is
    normalised and split by itself. It is not safe if an added token strips neighbouring space or matches
    single words only, or if the beginning of a text is treated differently from the beginning of a piece.
    """
    added = [token for token in tokenizer.get("added_tokens") or () if not token["normalized"]]
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added) or not added:
        return None
    if '"prepend_scheme": "first"' in json.dumps(tokenizer.get("pre_tokenizer")):
        return None
    contents = sorted((token["content"] for token in added), key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, contents))})")


Encode = Callable[[list[str]], list[int]]
"""Texts in, number of tokens of each out."""

_WORD_MEMORY_CHARS = 4_000_000
_BLOCK_CHARS = 100_000
"""Long texts are split a block at a time: a list of words takes much more memory than their text."""
_SPACE = re.compile(r"(?<=\S)(?= )")
"""None of the expressions joins a space with a character before it that is none."""

_GPT2 = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
# Digits are taken out first, one by one: the space before one is the end of a text.
_GPT2_DIGITS = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+|\s+(?![^\s0-9])|\s+", re.ASCII
)
_CL100K = re.compile(
    r"(?i:'(?:s|t|re|ve|m|ll|d))|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    re.ASCII,
)
_ENDING = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + _ENDING: _CL100K,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _ENDING: _CL100K,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+"
    + _ENDING: _CL100K,
}
"""The expressions of Qwen 2 and 3, Llama 3 and Qwen 3.5; they differ in marks and in runs of digits."""


class WordCounts:
    """Counts texts by their words, and remembers these."""

    def __init__(self, encode: Encode, expression: re.Pattern[str]) -> None:
        self._encode = encode
        self._find = expression.findall
        self._known: dict[str, int] = {}
        self._known_chars = 0

    def __call__(self, texts: list[str]) -> list[int]:
        return [sum(map(self._count, _blocks(text))) for text in texts]

    def _count(self, block: str) -> int:
        words = self._find(block) if block.isascii() else self._mixed(block)
        new = set(words).difference(self._known)
        if new:
            self._learn(new, words)
        return sum(map(self._known.__getitem__, words))

    def _mixed(self, block: str) -> list[str]:
        words: list[str] = []
        for plain, parts in groupby(_SPACE.split(block), str.isascii):
            some = list(parts)
            words += self._find("".join(some)) if plain else some
        return words

    def _learn(self, new: set[str], words: list[str]) -> None:
        self._known_chars += sum(map(len, new))
        if self._known_chars > _WORD_MEMORY_CHARS:
            self._known.clear()
            new = set(words)
            self._known_chars = sum(map(len, new))
        unknown = list(new)
        self._known.update(zip(unknown, self._encode(unknown), strict=True))


def _blocks(text: str) -> Iterator[str]:
    start = 0
    while cut := _SPACE.search(text, start + _BLOCK_CHARS):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def word_expression(tokenizer: JSONObject) -> re.Pattern[str] | None:
    """Returns the word splitter of a tokenizer in its library's form; None if it has none."""
    # A token that is matched after the normaliser may span words.
    if any(token["normalized"] for token in tokenizer.get("added_tokens") or ()):
        return None
    if (tokenizer.get("normalizer") or {"type": "NFC"})["type"] != "NFC":
        return None
    if (tokenizer.get("model") or {}).get("dropout"):
        return None
    splitter = tokenizer.get("pre_tokenizer") or {}
    steps = splitter["pretokenizers"] if splitter.get("type") == "Sequence" else [splitter]
    match [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]:
        case [{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]:
            return _GPT2
        case [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        ]:
            return _GPT2_DIGITS
        case [
            {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ]:
            return _SPLITS.get(pattern)
    return None
