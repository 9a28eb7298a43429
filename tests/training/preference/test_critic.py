"""The critic of RLHF: its values are a read-out that is computed by hand here, and it learns the rewards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hermes.core.sequence import MASKED, MASKED_LOGPROB
from hermes.errors import HermesError
from hermes.training.critic import CriticConfig, open_critic
from hermes.training.data.advantages import generalised_advantages
from hermes.training.data.batch import BatchConfig, prepare
from hermes.training.preference.losses import sigmoid
from hermes.training.preference.readout import ReadOutTokens
from hermes.training.service.client import AdapterClient
from hermes.training.service.token_meter import TokenMeter
from hermes.training.session import TrainingRunSpec
from tests.training.conftest import MakeRun

WORDS = ReadOutTokens(300, 301)
PROMPTS = {(270, 271, 272): 0.9, (280, 281, 282): 0.2}
"""What answers to each prompt are worth."""


def group(prompt: tuple[int, ...], score: float, rollouts: int = 3) -> dict[str, Any]:
    """Answers of three tokens, which all have the same score."""
    answers = [[310 + number, 320 + number, 330] for number in range(rollouts)]
    return {
        "tokens": [[*prompt, *answer] for answer in answers],
        "masks": [[*[MASKED] * len(prompt), *answer] for answer in answers],
        "scores": [score] * rollouts,
        "inference_logprobs": [[*[MASKED_LOGPROB] * len(prompt), -6.0, -6.1, -6.2]] * rollouts,
    }


@pytest.fixture
def meter(make_run: MakeRun) -> Iterator[TokenMeter]:
    with closing(TokenMeter(make_run().folder)) as opened:
        yield opened


def test_generalised_advantages_come_out_as_computed_by_hand() -> None:
    # δ = 0.5 − 0.2, 0.4 − 0.5, 1 − 0.4; each estimate is δ + 0.5 · the next one.
    assert generalised_advantages([0.2, 0.5, 0.4], 1.0, 0.5) == pytest.approx([0.4, 0.2, 0.6])
    assert generalised_advantages([0.2, 0.5, 0.4], 1.0, 1.0) == pytest.approx([0.8, 0.5, 0.6])
    assert generalised_advantages([0.2, 0.5, 0.4], 1.0, 0.0) == pytest.approx([0.3, -0.1, 0.6])


def values_by_hand(run: TrainingRunSpec, meter: TokenMeter, tokens: list[int], first: int) -> list[float]:
    """From sequences that really end with one of the two words."""
    with AdapterClient(run.connection, run.lora, meter) as client:
        ends = [[*tokens[:at], word] for at in range(first, len(tokens)) for word in (WORDS.good, WORDS.bad)]
        last = [row[-1] for row in client.forward(ends)]
    return [sigmoid(good - bad) for good, bad in zip(last[::2], last[1::2], strict=True)]


def test_values_are_the_read_out_before_each_token(make_run: MakeRun, meter: TokenMeter) -> None:
    run, served = make_run(), group((270, 271, 272), 0.75)
    with open_critic(run, CriticConfig(WORDS, gae_lambda=1.0), meter, 0) as critic:
        assert critic is not None
        (valued,) = critic.add_advantages([served])
    for tokens, row in zip(served["tokens"], valued["advantages"], strict=True):
        assert row[:3] == [0.0] * 3, "what the model did not write has no advantage"
        values = values_by_hand(run, meter, tokens, 3)
        assert row[3:] == pytest.approx([0.75 - value for value in values], abs=1e-4)
    batch = prepare([valued], BatchConfig(), 0)
    assert len(batch.sequences) == 3, "equal rewards are a signal, because the baseline is not their mean"
    assert not prepare([served], BatchConfig(), 0).sequences


def test_it_learns_the_rewards_and_resumes_with_what_it_learned(make_run: MakeRun, meter: TokenMeter) -> None:
    run, config = make_run(), CriticConfig(WORDS, gae_lambda=1.0, learning_rate=0.003)
    served = [group(prompt, score) for prompt, score in PROMPTS.items()]
    with open_critic(run, config, meter, 0) as critic:
        assert critic is not None
        first = advantages_of(critic.add_advantages(served))
        history = [critic.update(rate=1.0)]
        for step in range(2, 16):
            critic.add_advantages(served)
            history.append(critic.update(rate=1.0))
            if step in (5, 15):
                critic.save(step)
        critic.drop_older(15)
        last = advantages_of(critic.add_advantages(served))
    # The advantage is the reward less the value: what is left of it is the critic's error.
    assert max(map(abs, last)) < 0.15 < 0.4 < max(map(abs, first))
    assert history[-1]["critic/loss"] < history[0]["critic/loss"]
    assert history[-1]["critic/explained_variance"] > 0.9 and history[0]["critic/grad_norm"] > 0
    with open_critic(run, config, meter, 15) as resumed:
        assert resumed is not None
        assert advantages_of(resumed.add_advantages(served)) == pytest.approx(last, abs=1e-5)
    with pytest.raises(HermesError, match="has no critic of step 5"), open_critic(run, config, meter, 5):
        pass


def advantages_of(groups: list[dict[str, Any]]) -> list[float]:
    """Of the trained tokens, all groups one after the other."""
    return [value for served in groups for row in served["advantages"] for value in row[3:]]


def test_a_reward_above_1_is_refused_and_a_sequence_that_is_too_long_has_no_value(
    make_run: MakeRun, meter: TokenMeter
) -> None:
    with open_critic(make_run(), CriticConfig(WORDS, max_tokens=5), meter, 0) as critic:
        assert critic is not None
        (left,) = critic.add_advantages([group((270, 271, 272), 0.5)])
        assert left["advantages"] == [None] * 3 and critic.update(1.0) == {}
        with pytest.raises(HermesError, match=r"the reward 1.5, and a critic's values lie between 0 and 1"):
            critic.add_advantages([group((270, 271), 1.5)])
