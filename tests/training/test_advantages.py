"""Advantages, correction and penalties against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hermes.core.sequence import TrainSequence, from_group, to_group
from hermes.training.data.advantages import Baseline, advantages
from hermes.training.data.batch import BatchConfig, penalties, prepare, teacher_terms, with_penalty
from hermes.training.data.datums import bounds_of, engine_loss, importance_weights, surrogate
from hermes.training.schedule import Schedule, ScheduleShape, default_rl_rate, default_sft_rate, parameters_of
from tests.training.world import group


def served(scores: list[float], **more: Any) -> dict[str, Any]:
    size = len(scores)
    return group([[300 + index, 2] for index in range(size)], [[-1.0, -0.5]] * size, scores, **more)


def sent(item: TrainSequence) -> list[float]:
    return list(item.advantages)


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        (Baseline.MEAN, [0.75, -0.25, -0.25, -0.25]),
        (Baseline.STD, [math.sqrt(3), *[-1 / math.sqrt(3)] * 3]),
        (Baseline.LEAVE_ONE_OUT, [1.0, *[-1 / 3] * 3]),
    ],
)
def test_one_right_of_four(baseline: Baseline, expected: list[float]) -> None:
    (found,) = advantages([[1, 0, 0, 0]], baseline)
    assert found == pytest.approx(expected)


def test_the_deviation_of_the_batch_counts_every_rollout_also_those_without_signal() -> None:
    first, second = advantages([[1, 0], [1, 1]], Baseline.BATCH_STD)
    spread = math.sqrt(3 / 16)  # of 1, 0, 1, 1
    assert first == pytest.approx([0.5 / spread, -0.5 / spread]) and second is None


def test_groups_of_equal_scores_and_of_one_have_no_advantages() -> None:
    assert advantages([[0.3, 0.3, 0.3], [1.0], [0, 1]], Baseline.MEAN) == [None, None, [-0.5, 0.5]]


def test_a_rollout_in_several_parts_counts_once_and_each_part_gets_its_advantage() -> None:
    parts = [{"trajectory_id": "a", "part": part, "parts": 2} for part in range(2)]
    made = served([1.0, 1.0, 0.0], overrides=[*parts, {"trajectory_id": "b"}])
    prepared = prepare([made], BatchConfig(), 0)
    assert [sent(item)[-1] for item in prepared.sequences] == [0.5, 0.5, -0.5]
    assert prepared.metrics["reward/mean"] == 0.5 and prepared.metrics["data/rollouts"] == 2


def test_advantages_are_on_sampled_tokens_only() -> None:
    first, second = prepare([served([1.0, 0.0])], BatchConfig(), 0).sequences
    assert sent(first) == [0, 0, 0, 0.5, 0.5] and sent(second) == [0, 0, 0, -0.5, -0.5]


def test_a_muted_sequence_counts_in_the_mean_and_is_not_trained_on() -> None:
    made = served([1.0, 0.0], overrides=[{"set_advantage_to_zero": True}, {}])
    (only,) = prepare([made], BatchConfig(), 0).sequences
    assert sent(only)[-1] == -0.5


def test_the_environments_own_advantages_are_taken_as_they_are() -> None:
    made = served([1.0, 0.0], advantages=[[9, 9, 9, 0.1, 0.2], [9, 9, 9, 0.3, 0.4]])
    first, second = prepare([made], BatchConfig(), 0).sequences
    assert sent(first) == [0, 0, 0, 0.1, 0.2] and sent(second) == [0, 0, 0, 0.3, 0.4]


def test_equal_scores_are_no_lack_of_signal_where_the_environment_tells_tokens_apart() -> None:
    told = served([0.0, 0.0], advantages=[[0, 0, 0, 0.5, 0], [0, 0, 0, -0.5, 0]])
    silent = served([0.0, 0.0], advantages=[[9, 9, 9, 0, 0], [9, 9, 9, 0, 0]])
    prepared = prepare([told, silent, served([1.0, 1.0])], BatchConfig(), 0)
    assert [sent(item)[3] for item in prepared.sequences] == [0.5, -0.5]
    assert prepared.metrics["health/group_signal"] == pytest.approx(1 / 3)
    assert prepared.metrics["health/zero_variance_groups"] == 2


def test_success_is_told_apart_from_reward_and_by_kind_of_task() -> None:
    parts = [{"trajectory_id": "a", "part": part, "parts": 2, "success": True} for part in range(2)]
    made = [
        served([0.9, 1.0], overrides=[{"kind": "two", "success": False}, {"kind": "two", "success": True}]),
        served([1.0, 1.0, 0.2], overrides=[*parts, {"kind": "one", "success": False}]),
        served([1.0, 0.0]),
    ]
    found = prepare(made, BatchConfig(), 0).metrics
    assert {name: value for name, value in found.items() if name.startswith("success/")} == {
        "success/mean": 0.5,
        "success/one": 0.0,
        "success/two": 0.5,
    }
    assert not any(name.startswith("success/") for name in prepare(made[2:], BatchConfig(), 0).metrics)


def test_stale_and_overlong_sequences_count_in_the_mean_and_are_dropped() -> None:
    made = served(
        [1.0, 0.0, 0.5],
        overrides=[{"policy_version": f"tinker://r/sampler_weights/step-{n}@1.5"} for n in (1, 5, 6)],
    )
    prepared = prepare([made], BatchConfig(max_staleness=2), 6)
    assert [sent(item)[-1] for item in prepared.sequences] == [-0.5, 0.0]
    assert prepared.metrics["health/stale_dropped"] == 1 and prepared.metrics["health/staleness_max"] == 5
    assert not prepare([made], BatchConfig(max_tokens=4), 6).sequences


def aged(*steps: int) -> list[dict[str, str]]:
    return [{"policy_version": f"tinker://r/sampler_weights/step-{step}"} for step in steps]


@pytest.mark.parametrize(
    ("groups", "untrainable"),
    [
        ([served([1.0, 0.0])], False),
        ([served([1.0, 1.0])], False),
        ([served([1.0, 0.0], overrides=aged(1, 1))], True),
        ([served([1.0, 1.0], overrides=aged(1, 1))], True),
        ([served([1.0, 0.0], overrides=aged(1, 1)), served([1.0, 1.0])], True),
        ([served([1.0, 0.0], overrides=aged(1, 9))], False),
        ([served([1.0, 0.0], inference_logprobs=None)], True),
        ([served([1.0, 0.0], inference_logprobs=None), served([1.0, 1.0, 1.0])], False),
        ([served([1.0, 0.0], inference_logprobs=None), served([1.0, 0.0])], False),
    ],
    ids=["good", "equal", "old", "old-equal", "old-and-equal", "one-old", "blind", "blind-few", "blind-good"],
)
def test_a_batch_is_untrainable_if_what_could_teach_is_left_out_not_if_it_has_no_signal(
    groups: list[dict[str, Any]], untrainable: bool
) -> None:
    assert prepare(groups, BatchConfig(max_staleness=2), 9).untrainable is untrainable


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"inference_logprobs": None}, "it has no inference_logprobs"),
        ({"inference_logprobs": [[1.0, 1.0, 1.0, 1.0, -0.5]]}, "a token that its mask trains has no logprob"),
        (
            {"inference_logprobs": [[1.0, 1.0, 1.0, 0.0, 0.0]]},
            "its logprobs are all 0: placeholders, or sampled greedily",
        ),
        ({"inference_logprobs": [[-0.5]]}, "tokens, masks and inference_logprobs differ in length"),
        ({"masks": [[0, 0, 0, 1, 1]]}, "its mask names other tokens than it has"),
        ({"masks": [[-100] * 5]}, "its mask trains nothing"),
        ({"tokens": [[]], "masks": [[]]}, "it has no tokens"),
        ({"scores": []}, "it has no score"),
        ({"overrides": [{"not_trainable": "ids withheld"}]}, "not trainable: ids withheld"),
    ],
)
def test_what_is_not_exact_is_refused_with_its_reason(change: dict[str, Any], why: str) -> None:
    found = from_group({**served([1.0]), **change})
    assert found.sequences == () and dict(found.rejected) == {why: 1}


def test_a_ratio_is_capped_from_above_only() -> None:
    found = importance_weights([-1.0, -1.0, -3.0], [-1.0, -3.0, -1.0], 2.0)
    assert found == pytest.approx([1.0, 2.0, math.exp(-2)])
    assert surrogate([-1.0, -1.0], [-1.0, -3.0], [0.5, -1.0], 2.0) == pytest.approx(-0.5 + 2.0)


def test_capped_importance_sampling_is_asked_for_as_the_loss_with_that_gradient() -> None:
    assert engine_loss("importance_sampling", 2.0, None) == (
        "cispo",
        {"clip_low_threshold": 0.0, "clip_high_threshold": 2.0},
    )
    assert engine_loss("importance_sampling", None, None) == ("importance_sampling", {})
    assert engine_loss("cispo", 2.0, None) == engine_loss("importance_sampling", 2.0, None)
    assert engine_loss("ppo", 2.0, None) == ("ppo", {}) and engine_loss("cispo", None, None) == ("cispo", {})
    assert bounds_of(engine_loss("ppo", 2.0, None)) == (0.8, 1.2)
    assert bounds_of(engine_loss("importance_sampling", None, None)) is None
    assert engine_loss("ppo", 2.0, (0.8, 1.28))[1] == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}


def test_a_penalty_is_centred_over_the_batch() -> None:
    found = penalties([[0.1, 0.3], [0.8]], 0.5)
    assert found == [pytest.approx([0.15, 0.05]), pytest.approx([-0.2])]
    batch = prepare([served([1.0, 0.0])], BatchConfig(), 0)
    reference = [[0, 0, 0, -1.5, -0.5], [0, 0, 0, -1.0, -0.5]]
    changed = with_penalty(batch, reference, [item.logprobs for item in batch.sequences], 1.0)
    assert changed.metrics["kl/reference"] == pytest.approx(0.125)
    assert sent(changed.sequences[0]) == pytest.approx([0, 0, 0, 0.5 + 0.125 - 0.5, 0.5 + 0.125])


def test_the_divergence_is_that_of_the_present_weights_not_of_those_that_sampled() -> None:
    batch = prepare([served([1.0, 0.0])], BatchConfig(), 0)
    stated = [item.logprobs for item in batch.sequences]
    same = with_penalty(batch, [[0, 0, 0, -3.0, -2.5]] * 2, [(0, 0, 0, -3.0, -2.5)] * 2, 1.0)
    assert same.metrics["kl/reference"] == 0, "the present weights are the reference"
    moved = with_penalty(batch, stated, [(0, 0, 0, -0.1, -0.1)] * 2, 1.0)
    assert moved.metrics["kl/reference"] > 0.3, "the sampling weights are the reference"


def test_a_sequence_at_the_mean_of_its_group_counts_in_the_denominator() -> None:
    """The loss is a mean over the trained tokens of groups with signal, whatever their advantages."""
    batch = prepare([served([1.0, 0.5, 0.0]), served([1.0, 1.0])], BatchConfig(), 0)
    tokens = sum(item.trained_tokens for item in batch.sequences)
    assert len(batch.sequences) == 3 and tokens == 6
    assert batch.metrics["data/trained_tokens"] == 6
    penalised = with_penalty(batch, [[0.0] * 5] * 3, [item.logprobs for item in batch.sequences], 1.0)
    assert any(sent(penalised.sequences[1])), "the penalty reaches a sequence at the mean too"
    assert prepare([served([1.0, 1.0])], BatchConfig(), 0).metrics["data/trained_tokens"] == 0


def test_a_teacher_draws_towards_what_it_finds_likelier() -> None:
    assert teacher_terms([-1.0, -2.0, -1.0], [-3.0, -1.0, None], 0.5) == [-1.0, 0.5, 0.0]
    made = served(
        [1.0, 1.0],
        distill_token_ids=[[[5], [6], [7], [300], [9]]] * 2,
        distill_logprobs=[[[0.0], [0.0], [0.0], [-3.0], [-1.0]]] * 2,
    )
    first = prepare([made], BatchConfig(distill=1.0), 0).sequences[0]
    assert sent(first) == [0, 0, 0, -2.0, 0.0]  # a token that is not among its best is not judged


def test_rates_fall_as_asked_and_never_before_their_time() -> None:
    linear = Schedule(1.0, ScheduleShape.LINEAR, warmup_steps=2, total_steps=6)
    assert [linear.at(step) for step in range(1, 7)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    cosine = Schedule(1.0, ScheduleShape.COSINE, total_steps=4)
    assert [cosine.at(step) for step in range(1, 5)] == pytest.approx([1, 0.853553, 0.5, 0.146447], rel=1e-5)


def test_default_rates_are_those_known_to_work() -> None:
    assert default_rl_rate(8e9) == 4e-5 and default_rl_rate(None) == 4e-5
    assert 1e-4 <= default_rl_rate(parameters_of("hermes/smollm2")) <= 3e-4
    assert 1.2e-3 <= default_sft_rate(135e6) <= 1.4e-3
    assert parameters_of("Qwen/Qwen3-0.6B") == 0.6e9 and parameters_of("some/model") is None


def test_the_parts_of_a_reward_are_curves_and_come_over_the_wire() -> None:
    overrides = [{"reward/format": 1.0, "reward/correct": 0.0}, {"reward/format": 0.5}]
    metrics = prepare([served([1.0, 0.0], overrides=overrides)], BatchConfig(), 0).metrics
    assert metrics["reward_part/format"] == 0.75 and metrics["reward_part/correct"] == 0
    sequence = from_group(served([1.0], overrides=overrides[:1])).sequences[0]
    assert to_group([sequence])["overrides"][0]["reward/format"] == 1.0


@pytest.mark.parametrize(
    ("params", "reshaped"),
    [({"top_p": 0.9}, False), ({"min_p": 0.1}, True), ({"repetition_penalty": 1.0}, False)],
)
def test_the_sampling_distribution_is_stated_by_the_group(params: dict[str, float], reshaped: bool) -> None:
    sequence = from_group(served([1.0], generation_params={"temperature": 0.7, **params})).sequences[0]
    assert (sequence.temperature, sequence.top_p) == (0.7, params.get("top_p", 1.0))
    assert sequence.reshaped == reshaped
