"""A training sequence from the environment to the trainer, and the group format on the wire. Pure.

`to_group` and `from_group` write and read the wire format, the ScoredDataGroup of Atropos: parallel lists
with one entry per sequence. A sequence is accepted only if its tokens, mask and logprobs are exact: of one
length, the mask repeating the ids of the tokens it trains, a real logprob at each of them. Every other
sequence (placeholders, missing logprobs, sequences that their environment marked) is rejected with a reason,
and the reasons are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hermes.core.json import JSON, JSONObject

T = TypeVar("T")

MASKED = -100
"""The mask of a token that is not trained on."""
MASKED_LOGPROB = 1.0
"""The logprob of a token that was not sampled; no real one is above 0."""
_RESHAPING = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
SAMPLING_FIELDS = ("top_p", "top_k", *_RESHAPING)
"""Sampling parameters that change the distribution of tokens, besides the temperature."""
ENVIRONMENT = "environment"
"""The key of the environment's name among the overrides of a group."""
_PART = "reward/"
"""The prefix of a reward's parts among the overrides."""
_DROPPED = "dropped_tokens/"
"""The prefix of the reasons of dropped tokens among the overrides."""
_STEP = re.compile(r"step-(\d+)")
"""The training step in the name of sampler weights; `TrainingSession.publish` names them so."""


@dataclass(frozen=True, slots=True)
class RolloutInfo:
    """The facts that an environment reports about the rollout that a sequence is part of."""

    id: str = ""
    """Sequences of one rollout have the same."""
    score: float = 0.0
    success: bool | None = None
    """The strict verdict; a score may give partial credit. None: not reported."""
    kind: str | None = None
    """The kind of the task."""
    stop_reason: str | None = None
    tool_calls: int = 0
    tool_errors: int = 0
    forbidden_paths: int | None = None
    """Forbidden paths that its tool calls name; None: not looked for."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named signals behind the score."""
    not_trainable: str | None = None
    """Why its tokens are not exact; None: they are."""
    dropped_tokens: Mapping[str, int] = field(default_factory=dict)
    """Reason → sampled tokens of the rollout that its environment left out of every sequence."""
    true_reward: float | None = None
    """The measure behind the score, where the environment has one: it is reported, never trained on."""


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """One exact context of a rollout. Fields by token are as long as `tokens`, optional ones may be empty."""

    tokens: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """Which tokens were sampled, and are trained on."""
    logprobs: tuple[float, ...]
    """Under the weights that sampled the token; MASKED_LOGPROB where it was not sampled."""
    policy_versions: tuple[str, ...] = ()
    """The names of the weights that sampled it; empty: unknown."""
    calls: tuple[int, ...] = ()
    """Indices of the rollout's model calls that it consists of; empty: unknown."""
    rollout: RolloutInfo = field(default_factory=RolloutInfo)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: all tokens."""
    reshaped: bool = False
    """Other parameters changed the distribution (min_p, penalties): the logprobs cannot be computed again."""
    exclude_from_loss: bool = False
    """The sequence counts in the mean of its group, and is not trained on."""
    advantages: tuple[float, ...] = ()
    """Empty until the trainer has computed them, unless the environment did."""
    ref_logprobs: tuple[float, ...] = ()
    """Under a reference model, if the environment sent them."""
    teacher_logprobs: tuple[float | None, ...] = ()
    """Under a teacher; None where the token is not among the teacher's best."""

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.loss_mask) == len(self.logprobs):
            sizes = f"{len(self.tokens)} tokens, {len(self.loss_mask)} mask, {len(self.logprobs)} logprobs"
            raise ValueError(f"a training sequence of unequal lengths: {sizes}")

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask)

    @property
    def trained_tail(self) -> int:
        """How many tokens there are from the first trained one on, without the first of all."""
        first = self.loss_mask.index(True) if any(self.loss_mask) else len(self.tokens) - 1
        return len(self.tokens) - max(1, first)

    def trained_only(self, values: Sequence[T]) -> list[T]:
        """The values, one a token, of the tokens that are trained on."""
        return [value for value, in_loss in zip(values, self.loss_mask, strict=True) if in_loss]

    @property
    def masks(self) -> tuple[int, ...]:
        """The loss mask on the wire: the id of a token that is trained on, MASKED for any other."""
        return tuple(
            token if in_loss else MASKED for token, in_loss in zip(self.tokens, self.loss_mask, strict=True)
        )

    @property
    def policy_steps(self) -> tuple[int, ...]:
        """The training steps of the weights that sampled it; empty: unknown."""
        matches = (_STEP.search(version) for version in self.policy_versions)
        return tuple(int(match[1]) for match in matches if match)

    def staleness(self, step: int) -> int | None:
        """How many steps before `step` its oldest token was sampled; None: unknown."""
        steps = self.policy_steps
        return step - min(steps) if steps else None

    def is_on_policy(self, step: int) -> bool:
        """Whether the weights of `step` sampled all of it, from their distribution at temperature 1."""
        whole = self.temperature == 1.0 and self.top_p >= 1.0 and self.top_k < 1
        return whole and set(self.policy_steps) == {step}


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The sequences of the rollouts of one task."""

    sequences: tuple[TrainSequence, ...]
    rejected: Counter[str] = field(default_factory=Counter)
    """Reason → sequences of the group that are not in `sequences`."""
    environment: str | None = None
    """The name of the environment that sent it; None: not reported."""

    @property
    def scores(self) -> list[float]:
        """One for each rollout, however many sequences it was split into."""
        return list({sequence.rollout.id: sequence.rollout.score for sequence in self.sequences}.values())

    @property
    def has_token_advantages(self) -> bool:
        """Whether the environment computed advantages by token, some of them not 0."""
        return any(
            advantage and in_loss
            for sequence in self.sequences
            if sequence.advantages
            for advantage, in_loss in zip(sequence.advantages, sequence.loss_mask, strict=True)
        )


def to_group(sequences: Sequence[TrainSequence]) -> JSONObject:
    """The columns of a group that `from_group` reads: one entry per sequence."""
    parts = Counter(sequence.rollout.id for sequence in sequences)
    written: Counter[str] = Counter()
    overrides = []
    for sequence in sequences:
        rollout_id = sequence.rollout.id
        overrides.append(_overrides(sequence, written[rollout_id], parts[rollout_id]))
        written[rollout_id] += 1
    return {
        "tokens": [list(sequence.tokens) for sequence in sequences],
        "masks": [list(sequence.masks) for sequence in sequences],
        "scores": [sequence.rollout.score for sequence in sequences],
        "inference_logprobs": [list(sequence.logprobs) for sequence in sequences],
        "overrides": overrides,
    }


def _overrides(sequence: TrainSequence, part: int, parts: int) -> JSONObject:
    rollout = sequence.rollout
    overrides: JSONObject = {
        "trajectory_id": rollout.id,
        "stop_reason": rollout.stop_reason,
        "tool_calls": rollout.tool_calls,
        "tool_errors": rollout.tool_errors,
        "success": rollout.success,
    }
    if rollout.kind is not None:
        overrides["kind"] = rollout.kind
    if rollout.forbidden_paths is not None:
        overrides["forbidden_paths"] = rollout.forbidden_paths
    overrides |= {f"{_PART}{name}": value for name, value in rollout.parts.items()}
    overrides |= {f"{_DROPPED}{reason}": count for reason, count in rollout.dropped_tokens.items() if count}
    if rollout.not_trainable is not None:
        overrides["not_trainable"] = rollout.not_trainable
    if rollout.true_reward is not None:
        overrides["true_reward"] = rollout.true_reward
    if sequence.policy_versions:
        overrides["policy_versions"] = sorted(set(sequence.policy_versions))
    if parts > 1:
        overrides |= {"part": part, "parts": parts}
    return overrides


def from_group(group: JSONObject) -> RolloutGroup:
    """A group as `GET /batch` of the trajectory API returns it."""
    sequences: list[TrainSequence] = []
    rejected: Counter[str] = Counter()
    for index in range(len(group["tokens"])):
        overrides = _at(group.get("overrides"), index) or {}
        reason = _rejection(group, index, overrides)
        if reason is None:
            sequences.append(_sequence(group, index, overrides))
        else:
            rejected[reason] += 1
    environment = (group.get("group_overrides") or {}).get(ENVIRONMENT)
    return RolloutGroup(tuple(sequences), rejected, None if environment is None else str(environment))


def _rejection(group: JSONObject, index: int, overrides: JSONObject) -> str | None:
    if overrides.get("not_trainable"):
        return f"not trainable: {overrides['not_trainable']}"
    tokens, masks = group["tokens"][index], _at(group.get("masks"), index)
    logprobs = _at(group.get("inference_logprobs"), index)
    if index >= len(group["scores"]):
        return "it has no score"
    if not tokens:
        return "it has no tokens"
    if logprobs is None:
        return "it has no inference_logprobs"
    if masks is None or not len(tokens) == len(masks) == len(logprobs):
        return "tokens, masks and inference_logprobs differ in length"
    sampled = [position for position, mask in enumerate(masks) if mask != MASKED]
    if not sampled or sampled == [0]:
        return "its mask trains nothing"
    if any(masks[position] != tokens[position] for position in sampled):
        return "its mask names other tokens than it has"
    if any(logprobs[position] > 0 for position in sampled):
        return "a token that its mask trains has no logprob"
    if len(sampled) > 1 and not any(logprobs[position] for position in sampled):
        return "its logprobs are all 0: placeholders, or sampled greedily"
    return None


def _sequence(group: JSONObject, index: int, overrides: JSONObject) -> TrainSequence:
    tokens = tuple(group["tokens"][index])
    return TrainSequence(
        tokens=tokens,
        # Nothing predicts the first token.
        loss_mask=(False, *(mask != MASKED for mask in group["masks"][index][1:])),
        logprobs=tuple(group["inference_logprobs"][index]),
        policy_versions=_policy_versions(overrides),
        rollout=_rollout(group, index, overrides),
        temperature=float(_sampling_value(group, overrides, "temperature", 1.0)),
        top_p=float(_sampling_value(group, overrides, "top_p", 1.0)),
        top_k=int(_sampling_value(group, overrides, "top_k", -1)),
        reshaped=any(_sampling_value(group, overrides, name, 0) not in (0, 1) for name in _RESHAPING),
        exclude_from_loss=bool(overrides.get("set_advantage_to_zero")),
        advantages=_by_token(group.get("advantages"), index, len(tokens)),
        ref_logprobs=_by_token(group.get("ref_logprobs"), index, len(tokens)),
        teacher_logprobs=_teacher_logprobs(group, index, tokens),
    )


def _number(value: JSON) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)


def _rollout(group: JSONObject, index: int, overrides: JSONObject) -> RolloutInfo:
    is_split = overrides.get("parts", 1) > 1 and overrides.get("trajectory_id") is not None
    kind, success = overrides.get("kind"), overrides.get("success")
    forbidden = _number(overrides.get("forbidden_paths"))
    return RolloutInfo(
        id=str(overrides["trajectory_id"]) if is_split else f"#{index}",
        score=group["scores"][index],
        success=None if success is None else bool(success),
        kind=None if kind is None else str(kind),
        stop_reason=overrides.get("stop_reason"),
        tool_calls=int(overrides.get("tool_calls") or 0),
        tool_errors=int(overrides.get("tool_errors") or 0),
        forbidden_paths=None if forbidden is None else int(forbidden),
        true_reward=_number(overrides.get("true_reward")),
        parts=_numbers_with(_PART, overrides),
        dropped_tokens={reason: int(count) for reason, count in _numbers_with(_DROPPED, overrides).items()},
    )


def _numbers_with(prefix: str, overrides: JSONObject) -> dict[str, float]:
    return {
        name.removeprefix(prefix): float(value)
        for name, value in overrides.items()
        if name.startswith(prefix) and isinstance(value, int | float)
    }


def _sampling_value(group: JSONObject, overrides: JSONObject, name: str, default: float) -> float:
    """A sampling parameter: of the sequence, else of the request, else of the group."""
    for settings in (overrides, group.get("generation_params"), group.get("group_overrides")):
        if settings and settings.get(name) is not None:
            value: float = settings[name]
            return value
    return default


def _policy_versions(overrides: JSONObject) -> tuple[str, ...]:
    versions = overrides.get("policy_versions") or [overrides.get("policy_version")]
    return tuple(version for version in versions if isinstance(version, str))


def _by_token(rows: Sequence[JSON] | None, index: int, size: int) -> tuple[float, ...]:
    values = _at(rows, index)
    return tuple(values) if values is not None and len(values) == size else ()


def _teacher_logprobs(group: JSONObject, index: int, tokens: tuple[int, ...]) -> tuple[float | None, ...]:
    """The teacher's logprob of each token, out of the teacher's best few."""
    ids, logprobs = _at(group.get("distill_token_ids"), index), _at(group.get("distill_logprobs"), index)
    if ids is None or logprobs is None or not len(ids) == len(logprobs) == len(tokens):
        return ()
    return tuple(
        dict(zip(best_ids, best_logprobs, strict=False)).get(token)
        for token, best_ids, best_logprobs in zip(tokens, ids, logprobs, strict=True)
    )


def _at(values: Sequence[JSON] | None, index: int) -> JSON:
    return values[index] if values is not None and index < len(values) else None
