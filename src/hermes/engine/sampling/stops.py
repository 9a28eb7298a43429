"""When a sequence ends: stop ids, stop texts, end of sequence.

Texts are looked for in the bytes that the sampled tokens stand for, so a match may begin and end inside
tokens and inside characters. What matched stays in the output. Whether a token could complete a text at all
is one look into a table over the vocabulary; only then are bytes compared.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hermes.engine.types import EngineUserError, Ints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MOST = 64
"""Stops a request may name."""


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """What ends the sequences of one request."""

    ids: tuple[int, ...]
    texts: tuple[bytes, ...] = ()
    may_complete: NDArray[np.bool_] | None = None
    """[vocab]: tokens with which one of the texts can end."""
    token_bytes: tuple[bytes, ...] = ()

    def completed(self, tokens: Ints) -> bool:
        """Whether the last of `tokens` completed a text."""
        longest = max(len(text) for text in self.texts)
        tail = self.token_bytes[int(tokens[-1])]
        wanted = len(tail) + longest - 1
        for token in tokens[-2::-1]:
            if len(tail) >= wanted:
                break
            tail = self.token_bytes[int(token)] + tail
        return any(text in tail[-wanted:] for text in self.texts)


class StopBook:
    """Makes `Stops` out of requests; remembers the last texts, since a run asks for the same ones again."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | None, eos_ids: tuple[int, ...], vocab: int
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._vocab = vocab
        self._bytes: tuple[bytes, ...] | None = None
        self._made: dict[tuple[tuple[bytes, ...], tuple[int, ...]], Stops] = {}
        self._lock = threading.Lock()  # requests are read in their callers' threads

    def read(self, stop: tuple[str, ...] | tuple[int, ...] | None) -> Stops:
        """None: end of sequence. (): nothing. Ids: these. Texts: these, ids beside them, end of sequence."""
        if stop is None:
            return Stops(self._eos_ids)
        if len(stop) > _MOST:
            raise EngineUserError(f"A request may name {_MOST} stops, not {len(stop)}.")
        texts = tuple(one.encode() for one in stop if isinstance(one, str))
        ids = tuple(int(one) for one in stop if not isinstance(one, str))
        if b"" in texts:
            raise EngineUserError("A stop text is empty.", "Use an empty list to stop at max_tokens only.")
        for one in ids:
            if not 0 <= one < self._vocab:
                raise EngineUserError(f"Stop id {one} is not in the vocabulary of {self._vocab} tokens.")
        if not texts:
            return Stops(ids)
        with self._lock:
            return self._read_texts(texts, ids)

    def _read_texts(self, texts: tuple[bytes, ...], ids: tuple[int, ...]) -> Stops:
        known = self._made.get((texts, ids))
        if known is None:
            if self._bytes is None:
                self._bytes = token_bytes(self._tokenizer, self._vocab)
            ends = tuple({text[start:] for text in texts for start in range(len(text))})
            may = [one.startswith(ends) or any(text in one for text in texts) for one in self._bytes]
            every = tuple(dict.fromkeys((*self._eos_ids, *ids)))
            known = Stops(every, texts, np.array(may), self._bytes)
            while len(self._made) >= _MOST:
                del self._made[next(iter(self._made))]
            self._made[texts, ids] = known
        return known


def token_bytes(tokenizer: PreTrainedTokenizerBase | None, vocab: int) -> tuple[bytes, ...]:
    """The bytes each token id stands for; ids that the tokenizer does not know stand for none."""
    if tokenizer is None:
        raise EngineUserError(
            "Stop texts need a tokenizer, and this model has none.", "Name stop token ids instead."
        )
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    kinds = _decoder_kinds(json.loads(backend.to_str()).get("decoder")) if backend is not None else set()
    added = {index: token.content.encode() for index, token in tokenizer.added_tokens_decoder.items()}
    words = tokenizer.convert_ids_to_tokens(list(range(vocab)))
    read = _read_byte_level if "ByteLevel" in kinds else _read_pieces
    return tuple(
        added[index] if index in added else b"" if word is None else read(word)
        for index, word in enumerate(words)
    )


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if not decoder:
        return set()
    return {decoder["type"]}.union(*(_decoder_kinds(one) for one in decoder.get("decoders", ())))


def _read_byte_level(word: str) -> bytes:
    table = _byte_level_table()
    return b"".join(bytes((table[one],)) if one in table else one.encode() for one in word)


def _read_pieces(word: str) -> bytes:
    """Sentence pieces: a low line for the space, and <0xE2> for a byte that has no piece."""
    if len(word) == 6 and word.startswith("<0x") and word.endswith(">"):
        return bytes((int(word[3:5], 16),))
    return word.replace("\u2581", " ").encode()


@cache
def _byte_level_table() -> dict[str, int]:
    """Byte-level vocabularies write printable bytes as themselves and the rest as letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
