"""When a sequence ends: stop ids, stop texts, end of sequence.

Texts are matched against the bytes of the sampled tokens, so a match may begin and end inside tokens and
inside characters. The matched text stays in the output. A table over the vocabulary says whether a token can
complete a text at all; bytes are compared only where it can.
"""

from __future__ import annotations

import bisect
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hermes.engine.types import EngineUserError, Ints

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_STOPS = 64
"""Stops of one request, and stop texts that are cached."""
_MAX_TEXT_BYTES, MAX_STOP_BYTES = 1000, 4000
"""The limits of one stop text, and of all stop texts of a request."""


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """The conditions that end the sequences of one request."""

    ids: tuple[int, ...]
    texts: tuple[bytes, ...] = ()
    may_complete: NDArray[np.bool_] | None = None
    """[vocab]: whether one of the texts can end with this token."""
    token_bytes: tuple[bytes, ...] = ()

    def text_completed(self, tokens: Ints) -> bool:
        """Whether the last of `tokens` completed a text."""
        longest = max(len(text) for text in self.texts)
        tail = self.token_bytes[int(tokens[-1])]
        needed = len(tail) + longest - 1
        for token in tokens[-2::-1]:
            if len(tail) >= needed:
                break
            tail = self.token_bytes[int(token)] + tail
        return any(text in tail[-needed:] for text in self.texts)


class StopParser:
    """Turns a request's `stop` into `Stops`. Recent stop texts are cached, since runs repeat them."""

    def __init__(
        self,
        open_tokenizer: Callable[[], PreTrainedTokenizerBase | None],
        eos_ids: tuple[int, ...],
        vocab: int,
    ) -> None:
        """`open_tokenizer` is called when the first stop text arrives: most runs stop at token ids."""
        self._open_tokenizer = open_tokenizer
        self._eos_ids = eos_ids
        self._vocab = vocab
        self._vocabulary: Vocabulary | None = None
        self._cache: dict[tuple[tuple[bytes, ...], tuple[int, ...]], Stops] = {}
        self._lock = threading.Lock()  # requests are parsed in their callers' threads

    def parse(self, stop: tuple[str, ...] | tuple[int, ...] | None) -> Stops:
        """None: stop at the end-of-sequence ids. (): never stop. Ids: stop at these only.

        Texts: stop at the texts, at ids in the same list, and at the end-of-sequence ids.
        """
        if stop is None:
            return Stops(self._eos_ids)
        if len(stop) > MAX_STOPS:
            raise EngineUserError(f"A request may have at most {MAX_STOPS} stops, not {len(stop)}.")
        texts = tuple(text.encode() for text in stop if isinstance(text, str))
        ids = tuple(int(token) for token in stop if not isinstance(token, str))
        if b"" in texts:
            raise EngineUserError("A stop text is empty.", "Use an empty list to stop at max_tokens only.")
        if max(map(len, texts), default=0) > _MAX_TEXT_BYTES or sum(map(len, texts)) > MAX_STOP_BYTES:
            limits = f"{_MAX_TEXT_BYTES} bytes, and all of them {MAX_STOP_BYTES}"
            raise EngineUserError(f"A stop text may have at most {limits}.", "Shorten the stop texts.")
        for token in ids:
            if not 0 <= token < self._vocab:
                raise EngineUserError(f"Stop id {token} is not in the vocabulary of {self._vocab} tokens.")
        if not texts:
            return Stops(ids)
        with self._lock:
            return self._parse_texts(texts, ids)

    def _parse_texts(self, texts: tuple[bytes, ...], ids: tuple[int, ...]) -> Stops:
        stops = self._cache.get((texts, ids))
        if stops is None:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(token_bytes(self._open_tokenizer(), self._vocab))
            all_ids = tuple(dict.fromkeys((*self._eos_ids, *ids)))
            may_complete = self._vocabulary.may_complete(texts)
            stops = Stops(all_ids, texts, may_complete, self._vocabulary.token_bytes)
            while len(self._cache) >= MAX_STOPS:
                del self._cache[next(iter(self._cache))]
            self._cache[texts, ids] = stops
        return stops


class Vocabulary:
    """The bytes of all tokens, arranged so that a request's stop texts cost milliseconds, however long."""

    def __init__(self, tokens: tuple[bytes, ...]) -> None:
        self.token_bytes = tokens
        self._order = sorted(range(len(tokens)), key=tokens.__getitem__)
        self._sorted = [tokens[index] for index in self._order]
        self._joined = b"".join(tokens)
        self._ends = np.cumsum([len(token) for token in tokens])
        self._longest = max(map(len, tokens), default=0)

    def may_complete(self, texts: tuple[bytes, ...]) -> NDArray[np.bool_]:
        """[vocab]: whether a text can end with this token: in its middle, or by a prefix of the token."""
        table = np.zeros(len(self.token_bytes), bool)
        # A suffix longer than every token is the prefix of none.
        for suffix in {
            text[-size:] for text in texts for size in range(1, min(len(text), self._longest) + 1)
        }:
            first = bisect.bisect_left(self._sorted, suffix)
            while first < len(self._sorted) and self._sorted[first].startswith(suffix):
                table[self._order[first]] = True
                first += 1
        for text in texts:
            starts = np.fromiter(self._occurrences(text), np.int64)
            indexes = np.searchsorted(self._ends, starts, side="right")
            table[indexes[starts + len(text) <= self._ends[indexes]]] = True
        return table

    def _occurrences(self, text: bytes) -> Iterator[int]:
        """Where the text begins in the joined tokens; it may lie across two of them."""
        start = self._joined.find(text)
        while start >= 0:
            yield start
            start = self._joined.find(text, start + 1)


def token_bytes(tokenizer: PreTrainedTokenizerBase | None, vocab: int) -> tuple[bytes, ...]:
    """The bytes of each token id; empty for ids that are not in the tokenizer's vocabulary."""
    if tokenizer is None:
        raise EngineUserError(
            "Stop texts need a tokenizer, and this model has none.", "Use stop token ids instead."
        )
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    kinds = _decoder_kinds(json.loads(backend.to_str()).get("decoder")) if backend is not None else set()
    added = {index: token.content.encode() for index, token in tokenizer.added_tokens_decoder.items()}
    pieces = tokenizer.convert_ids_to_tokens(list(range(vocab)))
    decode = _decode_byte_level if "ByteLevel" in kinds else _decode_sentencepiece
    return tuple(
        added[index] if index in added else b"" if piece is None else decode(piece)
        for index, piece in enumerate(pieces)
    )


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    if not decoder:
        return set()
    return {decoder["type"]}.union(*(_decoder_kinds(part) for part in decoder.get("decoders", ())))


def _decode_byte_level(piece: str) -> bytes:
    table = _byte_level_table()
    return b"".join(bytes((table[char],)) if char in table else char.encode() for char in piece)


def _decode_sentencepiece(piece: str) -> bytes:
    """SentencePiece writes U+2581 for the space, and <0xE2> for a byte that has no piece."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes((int(piece[3:5], 16),))
    return piece.replace("\u2581", " ").encode()


@cache
def _byte_level_table() -> dict[str, int]:
    """Byte-level vocabularies write printable bytes as themselves and the rest as letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + n): byte for n, byte in enumerate(unprintable)
    }
