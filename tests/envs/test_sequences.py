"""From recorded calls to training sequences."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hermes.core import ModelCall, TokenTrace
from hermes.core.sequence import MASKED, MASKED_LOGPROB
from hermes.envs.agent.sequences import build_sequences
from tests.records import model_call


def call(prompt: list[int], sampled: list[int], version: str | None = "v1") -> ModelCall:
    logprobs = tuple(-0.5 - index for index in range(len(sampled)))
    return replace(model_call(), tokens=TokenTrace(tuple(prompt), tuple(sampled), logprobs, version))


def test_calls_that_extend_one_another_are_one_sequence() -> None:
    exactness = build_sequences([call([1, 2], [3, 4]), call([1, 2, 3, 4, 5], [6], "v2")])
    (sequence,) = exactness.sequences
    assert sequence.tokens == (1, 2, 3, 4, 5, 6)
    assert sequence.masks == (MASKED, MASKED, 3, 4, MASKED, 6)
    assert sequence.logprobs == (MASKED_LOGPROB, MASKED_LOGPROB, -0.5, -1.5, MASKED_LOGPROB, -0.5)
    assert sequence.calls == (0, 1)
    assert sequence.policy_versions == ("v1", "v2")


def test_a_rewritten_history_begins_a_new_sequence_and_loses_nothing() -> None:
    exactness = build_sequences([call([1], [2]), call([1, 9], [3]), call([1, 9, 3, 4], [5])])
    assert [(each.tokens, each.calls) for each in exactness.sequences] == [
        ((1, 2), (0,)),
        ((1, 9, 3, 4, 5), (1, 2)),
    ]


def test_a_call_goes_on_from_the_longest_context_that_fits() -> None:
    exactness = build_sequences([call([1], [2]), call([7], [8]), call([1, 2, 3], [4]), call([7, 8, 9], [5])])
    assert [each.calls for each in exactness.sequences] == [(0, 2), (1, 3)]


def test_the_same_prompt_twice_is_two_sequences() -> None:
    exactness = build_sequences([call([1, 2], [3]), call([1, 2], [4])])
    assert [each.tokens for each in exactness.sequences] == [(1, 2, 3), (1, 2, 4)]


def test_one_call_without_tokens_makes_the_whole_rollout_untrainable() -> None:
    exactness = build_sequences([call([1], [2]), replace(model_call(), tokens=None)])
    assert not exactness.trainable
    assert exactness.sequences == ()
    assert "model call 2" in (exactness.inexact or "")


def test_withheld_tokens_are_named_as_the_reason() -> None:
    withheld = replace(model_call(), tokens=None, tokens_withheld="a secret was redacted")
    assert "a secret was redacted" in (build_sequences([withheld]).inexact or "")


def test_a_rollout_that_sampled_nothing_is_not_trainable() -> None:
    assert build_sequences([]).inexact == "the model was never called"
    assert build_sequences([call([1, 2], [])]).inexact == "the model sampled nothing"


ids = st.lists(st.integers(0, 3), max_size=4)


@given(st.lists(st.tuples(st.booleans(), ids, ids.filter(bool)), min_size=1, max_size=6))
def test_every_sampled_token_is_trained_on_once_in_the_context_it_was_sampled_in(
    turns: list[tuple[bool, list[int], list[int]]],
) -> None:
    history: list[int] = []
    calls: list[ModelCall] = []
    for goes_on, new, sampled in turns:
        history = [*history, *new] if goes_on else [9, *new]
        calls.append(call(history, sampled))
        history = [*history, *sampled]
    exactness = build_sequences(calls)
    assert sorted(index for each in exactness.sequences for index in each.calls) == list(range(len(calls)))
    for each in exactness.sequences:
        trained = [mask for mask in each.masks if mask != MASKED]
        traces = [trace for index in each.calls if (trace := calls[index].tokens)]
        assert trained == [index for trace in traces for index in trace.sampled_ids]
        for trace in traces:
            whole = (*trace.prompt_ids, *trace.sampled_ids)
            assert each.tokens[: len(whole)] == whole
            start = len(trace.prompt_ids)
            assert each.masks[start : len(whole)] == trace.sampled_ids
            assert each.logprobs[start : len(whole)] == trace.logprobs
