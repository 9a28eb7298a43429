"""Training sequences on the wire: what an environment writes is what a trainer reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.core.sequence import (
    MASKED,
    MASKED_LOGPROB,
    RolloutInfo,
    TrainSequence,
    from_group,
    to_group,
)

LOGPROBS = st.floats(-9, -0.01)


def sequence(rollout: RolloutInfo, prompt: int, logprobs: list[float], versions: list[str]) -> TrainSequence:
    return TrainSequence(
        tokens=tuple(range(5, 5 + prompt + len(logprobs))),
        loss_mask=(*[False] * prompt, *[True] * len(logprobs)),
        logprobs=(*[MASKED_LOGPROB] * prompt, *logprobs),
        policy_versions=tuple(sorted(set(versions))),
        rollout=rollout,
    )


rollouts = st.builds(
    RolloutInfo,
    score=st.floats(-1, 1),
    success=st.none() | st.booleans(),
    kind=st.none() | st.just("two"),
    stop_reason=st.just("completed"),
    tool_calls=st.integers(0, 3),
    tool_errors=st.integers(0, 3),
)
contexts = st.tuples(
    st.integers(1, 4),
    st.lists(LOGPROBS, min_size=1, max_size=4),
    st.lists(st.sampled_from(["step-1", "step-7"])),
)


@given(st.lists(st.tuples(rollouts, st.lists(contexts, min_size=1, max_size=3)), min_size=1, max_size=3))
def test_a_group_that_was_written_is_read_back_as_the_same_sequences(
    group: list[tuple[RolloutInfo, list[tuple[int, list[float], list[str]]]]],
) -> None:
    written = []
    for number, (info, parts) in enumerate(group):
        rollout = replace(info, id=f"rollout-{number}")
        written += [sequence(rollout, *part) for part in parts]
    read = from_group(json.loads(json.dumps(to_group(written))))
    assert not read.rejected
    assert [unnamed(item) for item in read.sequences] == [unnamed(item) for item in written]
    by_rollout: dict[str, set[str]] = {}
    for before, after in zip(written, read.sequences, strict=True):
        by_rollout.setdefault(before.rollout.id, set()).add(after.rollout.id)
    assert all(len(ids) == 1 for ids in by_rollout.values()), "one rollout stays one rollout"
    assert len(read.scores) == len(group)


def unnamed(item: TrainSequence) -> TrainSequence:
    """Everything but the rollout's id, which is only unique within a group."""
    return replace(item, rollout=replace(item.rollout, id=""))


def test_the_mask_on_the_wire_repeats_the_ids_of_trained_tokens() -> None:
    item = sequence(RolloutInfo("a", 1.0), 2, [-0.5, -0.25], ["tinker://r/sampler_weights/step-12@1"])
    assert item.masks == (MASKED, MASKED, 7, 8) and item.trained_tokens == 2
    assert (item.policy_steps, item.staleness(15)) == ((12,), 3)


def test_a_rollout_without_exact_tokens_is_rejected_with_the_reason_it_was_written_with() -> None:
    info = RolloutInfo("a", 0.5, not_trainable="the server returned no logprobs")
    read = from_group(to_group([TrainSequence((), (), (), rollout=info)]))
    assert read.sequences == () and list(read.rejected) == ["not trainable: the server returned no logprobs"]


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="unequal lengths: 2 tokens, 1 mask, 2 logprobs"):
        TrainSequence((1, 2), (True,), (-1.0, -1.0))
