"""Runs that get nothing to train on end with the reason, and the doctor names it."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.errors import HermesError
from hermes.rl.checks.doctor import diagnose
from hermes.training.data.batch import BatchConfig
from tests.training.conftest import MakeRun
from tests.training.rl_runs import always_the_first, trained
from tests.training.world import Environment, metrics


def test_batches_without_logprobs_end_the_run_with_the_reason(
    make_run: MakeRun, environment: Environment
) -> None:
    def blind(made: dict[str, Any]) -> None:
        del made["inference_logprobs"]

    with pytest.raises(HermesError, match="8 sequences: it has no inference_logprobs"):
        trained(make_run(), environment, blind, steps=9)


def test_batches_of_which_every_sequence_is_too_long_end_the_run_with_the_reason(
    make_run: MakeRun, environment: Environment
) -> None:
    run = make_run()
    with pytest.raises(HermesError, match=r"3 batches in a row .*8 sequences: longer than") as caught:
        trained(run, environment, steps=9, rules=BatchConfig(max_tokens=5))
    assert "--max-tokens" in caught.value.hint and len(metrics(run.folder)) == 2
    (cause, *_) = diagnose(metrics(run.folder), "running", None)
    assert cause.name == "rollouts too long" and "8.0 of 8.0 sequences" in cause.evidence
    assert "max_token_trainer_length" in cause.advice


def test_a_sampler_that_never_follows_ends_the_run_with_the_reason(
    make_run: MakeRun, environment: Environment
) -> None:
    run = make_run()
    change = always_the_first(environment)
    with pytest.raises(HermesError, match=r"10 batches in a row .*8 sequences: sampled too many") as caught:
        trained(run, environment, change, steps=20, rules=BatchConfig(max_staleness=1))
    assert "newest weights" in caught.value.hint and len(metrics(run.folder)) == 2 + 9


def test_rollouts_of_somebody_elses_weights_end_the_run_with_the_reason(
    make_run: MakeRun, environment: Environment
) -> None:
    def foreign(made: dict[str, Any]) -> None:
        made["overrides"] = [
            {"policy_version": "tinker://x/sampler_weights/step-999"} for _ in made["tokens"]
        ]

    with pytest.raises(HermesError, match="weights that this run does not have"):
        trained(make_run(), environment, foreign, steps=9)
