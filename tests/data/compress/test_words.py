"""Counting by words gives the tokenizer's own counts, for every way of splitting that is known."""

from __future__ import annotations

import inspect
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2 import tokenization_qwen2
from transformers.models.qwen3_5 import tokenization_qwen3_5

from hermes.data.compress.counting.tokens import WordCounts, word_expression
from tests.data.compress import made


def llama_3_pattern() -> str:
    """The default of transformers' own converter for tiktoken files, which Llama 3 has."""
    found = inspect.signature(TikTokenConverter).parameters["pattern"].default
    assert isinstance(found, str)
    return found


def split(pattern: str) -> Any:
    by_pattern = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence(
        [by_pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def digits() -> Any:
    one_by_one = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([one_by_one, pre_tokenizers.ByteLevel(add_prefix_space=False)])


SPLITTERS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm2": digits(),
    "qwen 2 and 3": split(tokenization_qwen2.PRETOKENIZE_REGEX),
    "qwen 3.5": split(tokenization_qwen3_5.PRETOKENIZE_REGEX),
    "llama 3": split(llama_3_pattern()),
}


def trained(splitter: Any, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitter
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=["<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [json.dumps(made.session_row(n), indent=1) for n in range(4)]
    odd = ["don't WE'LL a  b\n\n  c 1234 $$ --x ..y   \t\n 2026-11-15\r\n" * 20]
    tokenizer.train_from_iterator(texts + odd, trainer)
    return tokenizer


@cache
def tokenizer(name: str) -> Tokenizer:
    return trained(SPLITTERS[name], normalizers.NFC())


@cache
def counts(name: str) -> WordCounts:
    expression = word_expression(form(name))
    assert expression is not None
    return WordCounts(lambda texts: [len(each) for each in tokenizer(name).encode_batch(texts)], expression)


def form(name: str) -> Any:
    return json.loads(tokenizer(name).to_str())


SPACES = [*" \n\t\x0b\x0c\x1c\x1f\x85\xa0\u2003\u3000\u200b\ufeff\u2028", "  ", "\r\n", "\n\n ", " \n"]
MARKS = [*"\x00\x7f'$(\"é\u0301漢🙂½²٣", "--", "...", "'s", "'S", "'ll", "'LL", "'ſ", "’s", "e\u0301"]
WORDS = [*"a1x_", "the", "Error", "/tmp/y.py", "12", "123", "1234", "99999", "self.total_7(", "return"]
fragments = st.sampled_from(SPACES) | st.sampled_from(MARKS) | st.sampled_from(WORDS)
texts = st.lists(fragments | st.text(max_size=6), max_size=30).map("".join)


@pytest.mark.parametrize("name", SPLITTERS)
@given(text=texts)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_the_sum_over_the_words_is_the_count_of_the_text(name: str, text: str) -> None:
    assert counts(name)([text]) == [len(tokenizer(name).encode(text))]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SPLITTERS)
@given(text=texts)
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_sum_over_the_words_is_the_count_of_twenty_thousand_texts(name: str, text: str) -> None:
    assert counts(name)([text]) == [len(tokenizer(name).encode(text))]


@pytest.mark.parametrize("name", ["smollm2", "llama 3"])
def test_a_long_text_is_split_in_blocks_and_counted_the_same(name: str) -> None:
    plain = json.dumps([made.session_row(n) for n in range(8)], indent=1)
    mixed = (plain + " naïve 漢字 \xa0  x\n") * 2
    for text in (plain, mixed, " " * 150_000, "漢字 " * 40_000, "x" * 110_000 + " end"):
        assert counts(name)([text]) == [len(tokenizer(name).encode(text))]


def test_the_memory_of_words_is_bounded() -> None:
    asked: list[int] = []

    def encode(new: list[str]) -> list[int]:
        asked.append(len(new))
        return [1] * len(new)

    expression = word_expression(form("gpt-2"))
    assert expression is not None
    words = WordCounts(encode, expression)
    one = " ".join("a" * (n + 1) for n in range(2500))  # 3 MB of words
    other = " ".join("b" * (n + 1) for n in range(2500))
    assert words([one, one]) == [2500, 2500]
    assert sum(asked) == 2500
    assert words([other, one]) == [2500, 2500]
    assert sum(asked) > 2 * 2500


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
UNKNOWN = {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "part",
    [
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [UNKNOWN, BYTES]}},
        {"normalizer": {"type": "Lowercase"}},
        {"model": {"type": "BPE", "dropout": 0.1}},
        {"added_tokens": [{"id": 0, "content": "a b", "normalized": True}]},
    ],
)
def test_a_tokenizer_whose_words_are_not_known_has_none(part: dict[str, Any]) -> None:
    assert word_expression(form("gpt-2")) is not None
    assert word_expression({**form("gpt-2"), **part}) is None
