"""What ends a sequence: texts, ids, end of sequence, max_tokens."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from hermes.engine.sampling.stops import StopParser, token_bytes
from hermes.engine.types import EngineUserError, Ints
from tests.engine.sampling_parts import Bench, prompt, tiny_tokenizer

EOS = 2


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


def long_sample(bench: Bench, seed: int) -> Ints:
    return bench.sample(prompt(20), seed=seed, max_tokens=200).sequences[0].tokens


def first_with_eos(bench: Bench) -> tuple[int, Ints]:
    for seed in range(50):
        tokens = long_sample(bench, seed)
        if EOS in tokens:
            return seed, tokens
    raise AssertionError("no sample ran into the end of sequence")


def test_end_of_sequence_stops_unless_nothing_may(bench: Bench) -> None:
    seed, endless = first_with_eos(bench)
    at = endless.tolist().index(EOS)
    stopped = bench.sample(prompt(20), seed=seed, max_tokens=200, stop=None).sequences[0]
    assert stopped.tokens.tolist() == endless[: at + 1].tolist() and stopped.stop_reason == "stop"
    assert len(endless) == 200


def test_a_text_stops_and_so_does_the_end_of_sequence_but_ids_stop_alone(bench: Bench) -> None:
    seed, endless = first_with_eos(bench)
    at = endless.tolist().index(EOS)
    never = bench.sample(prompt(20), seed=seed, max_tokens=200, stop=("never to be seen",)).sequences[0]
    assert never.tokens.tolist() == endless[: at + 1].tolist()
    wanted = int(endless[at + 3])
    by_id = bench.sample(prompt(20), seed=seed, max_tokens=200, stop=(wanted,)).sequences[0]
    first = endless.tolist().index(wanted)
    assert by_id.tokens.tolist() == endless[: first + 1].tolist() and by_id.stop_reason == "stop"


@pytest.mark.parametrize("seed", range(6))
def test_a_text_is_found_across_tokens_and_inside_them_and_stays_in_the_output(
    bench: Bench, seed: int
) -> None:
    table = token_bytes(tiny_tokenizer(), 512)
    endless = long_sample(bench, 100 + seed)
    pieces = [table[token] for token in endless]
    whole = b"".join(pieces)
    rng = np.random.default_rng(seed)
    # a stretch of the output itself that reads as text, wherever it starts and ends among the tokens
    while True:
        start, size = int(rng.integers(20, 120)), int(rng.integers(2, 9))
        text = whole[start : start + size]
        if len(text.decode(errors="ignore").encode()) == len(text):
            break
    ends = np.cumsum([len(piece) for piece in pieces])
    first = whole.index(text) + len(text)
    wanted = int(np.searchsorted(ends, first)) + 1
    until_eos = endless.tolist().index(EOS) + 1 if EOS in endless else len(endless)
    found = bench.sample(
        prompt(20), seed=100 + seed, max_tokens=200, stop=(text.decode(), "\x00no")
    ).sequences[0]
    assert len(found.tokens) == min(wanted, until_eos)
    assert found.tokens.tolist() == endless[: len(found.tokens)].tolist()


def test_a_character_of_several_tokens_is_found_with_its_last_byte() -> None:
    tokenizer = tiny_tokenizer()
    table = token_bytes(tokenizer, 512)
    single = {piece: index for index, piece in enumerate(table) if len(piece) == 1}
    stops = StopParser(lambda: tokenizer, (EOS,), 512).parse(("語",))
    ids = np.array([single[bytes((byte,))] for byte in "日本語".encode()])
    assert stops.may_complete is not None
    assert [stops.text_completed(ids[: n + 1]) for n in range(len(ids))] == [False] * 8 + [True]
    assert stops.may_complete[ids[-1]] and not stops.may_complete[single[b"x"]]


def test_token_bytes_spell_what_the_tokenizer_decodes() -> None:
    tokenizer = tiny_tokenizer()
    table = token_bytes(tokenizer, 512)
    for text in ("grüße from 東京 🙂", "</tool_call>\n stop", "</s> the end"):
        assert b"".join(table[token] for token in tokenizer.encode(text)).decode() == text


def test_sentence_pieces_are_read_with_their_spaces_and_bytes() -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    pieces = [("<unk>", 0.0), ("\u2581the", -1.0), ("\u2581", -2.0), ("<0xE8>", -3.0), ("cat", -1.5)]
    bare = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    bare.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=bare, unk_token="<unk>")
    assert token_bytes(tokenizer, 6) == (b"<unk>", b" the", b" ", b"\xe8", b"cat", b"")


@pytest.mark.parametrize(
    ("stop", "why"),
    [
        (("",), "empty"),
        ((512,), "vocabulary"),
        ((-1,), "vocabulary"),
        (("x",) * 65, "64"),
    ],
)
def test_wrong_stops_are_refused_with_the_reason(bench: Bench, stop: tuple[str, ...], why: str) -> None:
    with pytest.raises(EngineUserError, match=why):
        bench.ask(prompt(10), stop=stop)


def test_tables_of_stop_texts_go_with_the_last_that_used_them() -> None:
    bench = Bench()
    tables = []
    for number in range(70):  # more than are remembered for requests to come
        job = bench.ask(prompt(10), stop=(f"never {number}",), max_tokens=2, num_samples=2)
        assert job.stops.may_complete is not None
        tables.append(weakref.ref(job.stops.may_complete))
        bench.run(job)
    del job
    gc.collect()
    assert [table() is None for table in tables] == [True] * 6 + [False] * 64


def test_stop_texts_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(EngineUserError, match="tokenizer"):
        StopParser(lambda: None, (EOS,), 512).parse(("x",))
    assert StopParser(lambda: None, (EOS,), 512).parse(None).ids == (EOS,)
