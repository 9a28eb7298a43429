"""Groups as data: joining, refusing, pacing, checkpoints, the page, intervals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.core.stats import interval, wilson
from hermes.envs.config import BaseEnvConfig, EvalHandlingEnum
from hermes.envs.failures import EnvironmentRunError
from hermes.envs.groups import encode, join_items, rejection_reason
from hermes.envs.modes import checkpoint, pacing
from hermes.envs.modes.evaluate import measure
from hermes.envs.modes.process import generate_html
from hermes.errors import ProviderError

CONFIG = BaseEnvConfig(group_size=2)


def group(**changes: Any) -> dict[str, Any]:
    return {"tokens": [[1, 2], [3]], "masks": [[1, 2], [3]], "scores": [0.0, 1.0], **changes}


def test_joining_keeps_what_all_answers_have_and_leaves_gaps_out() -> None:
    one = {"tokens": [1], "masks": [1], "scores": 0.5, "inference_logprobs": [-1.0], "advantages": [1.0]}
    two = {**one, "advantages": None, "generation_params": {"temperature": 0.7}, "group_overrides": {"a": 1}}
    joined = join_items([one, two])
    assert joined["inference_logprobs"] == [[-1.0], [-1.0]]
    assert joined["advantages"] is None and joined["overrides"] is None
    assert joined["generation_params"] == {"temperature": 0.7} and joined["group_overrides"] == {"a": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"group_overrides": None}, None),
        ({"scores": [np.float32(0), np.float32(1)]}, None),
        ({"scores": [True, False]}, None),
        ({"tokens": [[1]]}, "wrong size"),
        ({"tokens": [[1]], "scores": [1.0], "group_overrides": {"group_size": 1}}, None),
        ({"masks": None}, "wrong size"),
        ({"scores": [1.0, 1]}, "equal scores"),
        ({"scores": [1.0, 1], "advantages": [[0.0, 0.5], np.zeros(1)]}, None),
        ({"scores": [1.0, 1], "advantages": [[0.0, 0.0], None]}, "equal scores"),
        ({"scores": [math.nan, 1.0]}, "bad score"),
        ({"scores": [math.inf, 1.0]}, "bad score"),
        ({"scores": ["1.0", 0.0]}, "bad score"),
        ({"scores": [None, 0.0]}, "bad score"),
        ({"scores": [[1.0], 0.0]}, "bad score"),
        ({"tokens": [[1] * 10, [1]]}, "too long"),
    ],
)
def test_a_group_is_refused_for_a_reason_or_not_at_all(changes: dict[str, Any], reason: str | None) -> None:
    assert rejection_reason(group(**changes), CONFIG, max_tokens=10) == reason


def test_numbers_of_numpy_are_written_as_numbers_and_nan_is_an_error() -> None:
    assert json.loads(encode({"a": np.int64(3), "b": np.array([1.5])})) == {"a": 3, "b": [1.5]}
    with pytest.raises(ValueError, match="JSON compliant"):
        encode({"a": math.nan})


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 50))
def test_a_multiple_counts_as_crossed_however_many_steps_go_by(before: int, more: int, interval: int) -> None:
    passed = any(step % interval == 0 for step in range(before + 1, before + more + 1))
    assert pacing.is_crossed(before, before + more, interval) == passed
    assert not pacing.is_crossed(before, before + more, -1)


def test_workers_fill_the_room_that_the_trainer_leaves() -> None:
    config = BaseEnvConfig(group_size=2, batch_size=8, max_batches_offpolicy=3)
    status = {"queue_size": 5, "self_queue_size": 5, "max_group_size": 2, "current_step": 0}
    assert pacing.target_workers(config, status, share=8, limit=100, evaluating=False) == 7
    assert pacing.target_workers(config, status, share=8, limit=4, evaluating=False) == 4
    assert pacing.target_workers(config, status, share=8, limit=4, evaluating=True) == 0
    limited = config.model_copy(update={"eval_handling": EvalHandlingEnum.LIMIT_TRAIN})
    assert pacing.target_workers(limited, status, share=8, limit=4, evaluating=True) == 2
    full = {**status, "queue_size": 12}
    assert pacing.must_pause(config, full, share=8) and not pacing.must_pause(config, status, share=8)
    assert pacing.must_pause(config, status, share=-1)
    owed = config.model_copy(update={"min_batch_allocation": 0.5})
    assert not pacing.must_pause(owed, {**full, "self_queue_size": 5}, share=8)
    assert pacing.must_pause(owed, {**full, "self_queue_size": 6}, share=8)
    assert pacing.target_workers(owed, {**full, "self_queue_size": 4}, 8, 100, False) == 2


def test_same_named_environments_find_their_own_checkpoints_after_a_restart(tmp_path: Path) -> None:
    folder = str(tmp_path)
    checkpoint.write(folder, "env_0", 10, {"iter": 1}, owner="first")
    checkpoint.write(folder, "env_1", 10, {"iter": 2}, owner="second")
    assert checkpoint.read(folder, "env_0", 10, "second") == {"iter": 2}
    assert checkpoint.read(folder, "env_1", 10, "first") == {"iter": 1}
    assert checkpoint.read(folder, "env_0", 20, "first") == {}
    (tmp_path / "env_checkpoints" / "env_0" / "step-30.json").write_text('{"iter": 9}')
    assert checkpoint.read(folder, "env_0", 30, "first") == {"iter": 9}, "the original's files name no owner"
    assert not list(tmp_path.rglob("*.part"))


def test_the_page_shows_text_as_text(tmp_path: Path) -> None:
    file = tmp_path / "<groups>.jsonl"
    hostile = "<script>alert(1)</script>"
    messages = [
        [{"role": hostile, "content": hostile}],
        [{"role": "user", "content": [{"text": hostile}]}],
        hostile,
    ]
    file.write_text(json.dumps({"scores": [1.0, hostile, None], "messages": messages}) + "\n")
    page = generate_html(file).read_text()
    assert "<script>" not in page and page.count("&lt;script&gt;") >= 4
    assert "<title>&lt;groups&gt;.jsonl</title>" in page


def test_intervals_stay_in_bounds_and_hold_the_mean() -> None:
    assert wilson(0, 10).low == 0 and 0 < wilson(0, 10).high < 0.35
    assert wilson(10, 10).high == 1 and wilson(10, 10).low > 0.65
    one = interval([0, 1, 1, 1])
    assert one.method == "wilson" and one.low < one.mean == 0.75 < one.high
    graded = interval([0.1, 0.9, 0.5, 0.3])
    assert graded.method == "bootstrap" and graded.low < graded.mean < graded.high
    assert interval([0.1, 0.9, 0.5, 0.3]) == graded


async def test_a_sample_that_fails_for_the_infrastructure_is_tried_again_and_then_counted() -> None:
    tried: list[int] = []

    async def work(item: int) -> int:
        tried.append(item)
        if item == 1 and tried.count(1) == 1:
            raise ProviderError("busy", retryable=True)
        if item == 2:
            raise ConnectionError("gone")
        if item == 3:
            raise KeyError("bug")
        return item * 10

    samples = await measure([0, 1, 2, 3], work, max_concurrency=2)
    assert samples.measured == [0, 10]
    assert samples.dropped == {"provider": 1, "environment": 1}
    assert (tried.count(1), tried.count(2), tried.count(3)) == (2, 3, 1)
    with pytest.raises(EnvironmentRunError, match="none of 1 samples"):
        await measure([2], work, max_concurrency=1)


def test_a_synchronous_environment_begins_what_the_batch_still_needs() -> None:
    config = BaseEnvConfig(group_size=4, batch_size=24, synchronous=True)
    idle = {"current_step": 3, "queue_size": 0, "self_queue_size": 0}
    assert pacing.missing_groups(config, idle, share=24, in_progress=0) == 6
    assert pacing.missing_groups(config, idle, share=24, in_progress=4) == 2
    assert pacing.missing_groups(config, {**idle, "queue_size": 5}, share=24, in_progress=4) == 0
    mixed = config.model_copy(update={"min_batch_allocation": 1 / 3})
    others = {**idle, "queue_size": 4, "self_queue_size": 1}
    assert pacing.missing_groups(mixed, others, share=24, in_progress=0) == 1, "its own share, not the rest"


def test_the_trainer_waits_for_a_batch_once_its_weights_are_published() -> None:
    run = {"current_step": 3, "trainer": {"waiting_s": 0.1}}
    assert pacing.waits_for_batch(run, {"current_step": 3})
    assert not pacing.waits_for_batch(run, {"current_step": 4}), "it has taken the batch since"
    assert not pacing.waits_for_batch({**run, "trainer": {"waiting_s": None}}, {"current_step": 3})
    assert pacing.waits_for_batch({"current_step": 3}, {"current_step": 3}), "an API that does not say"
