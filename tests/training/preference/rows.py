"""Pairs and rated answers for the tiny model, made of token ids."""

from __future__ import annotations

import random

from hermes.training.data.sft_examples import SftExample
from hermes.training.preference.examples import PairExample, RenderedCompletion, RowSplit, UnpairedExample
from hermes.training.preference.reward import RewardPair

LONGEST = 64
LIKED, DISLIKED = range(260, 268), range(400, 408)


def completion(prompt: list[int], answer: list[int]) -> RenderedCompletion:
    mask = (*[False] * len(prompt), *[True] * len(answer))
    return RenderedCompletion((SftExample((*prompt, *answer), mask),))


def ids(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(259, 500) for _ in range(rng.randint(low, high))]


def pair_rows(count: int, held_out: int = 0, seed: int = 0) -> RowSplit[PairExample]:
    """Some tokens are liked, others are not."""
    rng = random.Random(seed)
    rows = []
    for number in range(count + held_out):
        prompt = ids(rng, 3, 6)
        chosen = completion(prompt, [LIKED[token % 8] for token in ids(rng, 2, 9)])
        rejected = completion(prompt, [DISLIKED[token % 8] for token in ids(rng, 2, 9)])
        rows.append(PairExample(chosen, rejected, str(number), 1.0))
    return RowSplit(rows[:count], rows[count:])


def unpaired_rows(count: int, held_out: int = 0, seed: int = 0) -> RowSplit[UnpairedExample]:
    pairs = pair_rows(count + held_out, seed=seed).train
    rows = [
        UnpairedExample(pair.chosen if number % 3 else pair.rejected, bool(number % 3), pair.task)
        for number, pair in enumerate(pairs)
    ]
    return RowSplit(rows[:count], rows[count:])


def reward_rows(count: int, held_out: int = 0, seed: int = 0) -> RowSplit[RewardPair]:
    """Conversations as token ids; those with liked tokens are preferred."""
    rows = [
        RewardPair(
            pair.chosen.contexts[0].tokens,
            pair.rejected.contexts[0].tokens,
            0.5,
            pair.chosen.trained_tokens,
            pair.rejected.trained_tokens,
        )
        for pair in pair_rows(count + held_out, seed=seed).train
    ]
    return RowSplit(rows[:count], rows[count:])
