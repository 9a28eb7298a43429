"""Wrong training data is refused before any work, naming the datum and the field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hermes.engine.model.load import wrap_model
from hermes.engine.spec import ModelSpec
from hermes.engine.training.validation import validate
from hermes.engine.types import Datum, EngineUserError, Loss

from .tiny import tiny_model

LENGTH = 6
GOOD: dict[str, dict[str, Any]] = {
    "cross_entropy": {"weights": np.ones(LENGTH, np.float32)},
    "ppo": {"logprobs": np.zeros(LENGTH, np.float32), "advantages": np.ones(LENGTH, np.float32)},
}
for _inputs in GOOD.values():
    _inputs["target_tokens"] = np.arange(LENGTH)


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return wrap_model(tiny_model(), "tiny").spec


def at(index: int, value: float) -> Any:
    column = np.ones(LENGTH, np.float32)
    column[index] = value
    return column


def test_good_data_passes(spec: ModelSpec) -> None:
    for name, inputs in GOOD.items():
        validate([Datum(np.arange(LENGTH), inputs)], Loss(name), spec)
    several = {"target_tokens": np.zeros((LENGTH, 3), np.int64), "weights": np.zeros((LENGTH, 3), np.float32)}
    validate([Datum(np.arange(LENGTH), several)], Loss("cross_entropy"), spec)
    odd = {**GOOD["cross_entropy"], "weights": np.array([-1, 0.5, 0, 0.5, 0, 0], np.float32)}
    validate([Datum(np.arange(LENGTH), odd)], Loss("cross_entropy"), spec)
    clips = {"clip_low_threshold": at(0, 0.1), "clip_high_threshold": at(0, 1.1)}
    validate([Datum(np.arange(LENGTH), {**GOOD["ppo"], **clips})], Loss("ppo"), spec)


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("cross_entropy", {"weights": None}, "lacks weights"),
    ("ppo", {"advantages": None}, "lacks advantages"),
    ("ppo", {"weights": np.ones(LENGTH)}, "does not take weights"),
    ("cross_entropy", {"mask": np.ones(LENGTH)}, "does not take mask"),
    ("cross_entropy", {"weights": at(4, np.nan)}, r"weights is not finite at position 4 \(nan\)"),
    ("ppo", {"advantages": at(0, np.inf)}, "advantages is not finite at position 0"),
    ("ppo", {"logprobs": at(2, -np.inf)}, "logprobs is not finite at position 2"),
    ("ppo", {"logprobs": np.full(LENGTH, -1e300)}, "logprobs is not finite"),
    ("ppo", {"logprobs": np.zeros(LENGTH - 1)}, r"logprobs has shape \(5,\), target_tokens \(6,\)"),
    ("ppo", {"advantages": np.array(["a"] * LENGTH)}, "advantages must be numbers"),
    ("ppo", {"advantages": np.ones(LENGTH, bool)}, "advantages must be numbers"),
    ("cross_entropy", {"target_tokens": np.zeros(LENGTH, np.float32)}, "target_tokens must be integers"),
    (
        "cross_entropy",
        {"target_tokens": np.array([0, 1, 512, 0, 0, 0])},
        "target_tokens holds 512 at position 2",
    ),
    ("cross_entropy", {"target_tokens": np.array([0, -100, 0, 0, 0, 0])}, "target_tokens holds -100 at"),
    (
        "cross_entropy",
        {"target_tokens": np.zeros(5, np.int64)},
        r"target_tokens has shape \(5,\) for 6 tokens",
    ),
    ("cross_entropy", {"target_tokens": np.zeros((LENGTH, 0), np.int64)}, "target_tokens has shape"),
    ("cross_entropy", {"target_tokens": np.zeros((LENGTH, 2), np.int64)}, r"weights has shape \(6,\)"),
    ("ppo", {"target_tokens": np.zeros((LENGTH, 2), np.int64)}, "ppo takes one target per position"),
    ("cross_entropy", {"tokens": np.arange(LENGTH) + 510}, "tokens holds 512 at position 2"),
    ("cross_entropy", {"tokens": np.arange(LENGTH, dtype=np.float32)}, "tokens must be a list of integers"),
    ("cross_entropy", {"tokens": np.zeros((2, 3), np.int64)}, "tokens must be a list of integers"),
    ("cross_entropy", {"tokens": np.zeros(0, np.int64)}, "it has no tokens"),
    ("cross_entropy", {"tokens": np.zeros(513, np.int64)}, "it has 513 tokens; at most 512"),
    ("ppo", {"clip_low_threshold": at(0, 2), "clip_high_threshold": at(0, 1)}, "between 0 and"),
]


@pytest.mark.parametrize(("name", "changes", "reason"), FAULTS)
def test_what_is_wrong_is_named(spec: ModelSpec, name: str, changes: dict[str, Any], reason: str) -> None:
    inputs = {field: values for field, values in {**GOOD[name], **changes}.items() if values is not None}
    tokens = inputs.pop("tokens", np.arange(LENGTH))
    good = Datum(np.arange(LENGTH), GOOD[name])
    with pytest.raises(EngineUserError, match=f"Datum 2: .*{reason}"):
        validate([good, good, Datum(tokens, inputs)], Loss(name), spec)
