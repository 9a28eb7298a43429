"""What the trajectory API serves, as typed sequences; and which of them cannot be trained on, and why. Pure.

A sequence is accepted only if its tokens, mask and logprobs are exact: of one length, the mask naming the
very tokens it trains, a real logprob at each of them. Anything else (placeholders, missing logprobs, rollouts
that their environment marked) is refused with a reason that is counted, never guessed around.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes.core.json import JSON, JSONObject

MASKED = -100
"""The mask of a token that is not trained on."""
_VERSION = re.compile(r"step-(\d+)")
"""In the name of the sampler weights; `session.publish` gives it."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sequence of a group: the whole of a rollout, or one exact context of it."""

    tokens: tuple[int, ...]
    trained: tuple[bool, ...]
    """Which tokens were sampled."""
    logprobs: tuple[float, ...]
    """The sampler's; meaningless where not sampled."""
    score: float
    key: str
    """What belongs together: sequences of one rollout have the same."""
    temperature: float = 1.0
    versions: tuple[int, ...] = ()
    """The steps whose weights sampled it; empty: not told."""
    muted: bool = False
    """It counts for its group's mean, and is not trained on."""
    advantages: tuple[float, ...] | None = None
    """By token, where the environment computed them itself."""
    reference: tuple[float, ...] | None = None
    """Logprobs of a reference model, where the environment gave them."""
    teacher: tuple[float | None, ...] | None = None
    """Logprobs of a teacher; None where it has none for the token."""
    stop_reason: str | None = None
    tool_calls: int = 0
    tool_errors: int = 0
    kind: str | None = None
    """Of the task, where the environment tells."""
    success: bool | None = None
    """The strict verdict, where the environment tells; a score may give credit in part."""

    @property
    def trained_tokens(self) -> int:
        return sum(self.trained)


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """Rollouts of one task."""

    rollouts: tuple[Rollout, ...]
    refused: Counter[str] = field(default_factory=Counter)
    """Reason → sequences that are not among them."""

    @property
    def scores(self) -> list[float]:
        """One for each rollout, however many sequences it was split into."""
        return list({rollout.key: rollout.score for rollout in self.rollouts}.values())

    @property
    def told(self) -> bool:
        """Whether the environment says itself that some tokens were better than others."""
        return any(
            value and trained
            for rollout in self.rollouts
            if rollout.advantages is not None
            for value, trained in zip(rollout.advantages, rollout.trained, strict=True)
        )


def read_group(item: JSONObject) -> RolloutGroup:
    """A group as `GET /batch` gives it."""
    rollouts: list[Rollout] = []
    refused: Counter[str] = Counter()
    for index in range(len(item["tokens"])):
        facts = _at(item.get("overrides"), index) or {}
        why = _refusal(item, index, facts)
        if why is None:
            rollouts.append(_rollout(item, index, facts))
        else:
            refused[why] += 1
    return RolloutGroup(tuple(rollouts), refused)


def _refusal(item: JSONObject, index: int, facts: JSONObject) -> str | None:
    if facts.get("not_trainable"):
        return f"not trainable: {facts['not_trainable']}"
    tokens, masks = item["tokens"][index], _at(item.get("masks"), index)
    logprobs = _at(item.get("inference_logprobs"), index)
    if index >= len(item["scores"]):
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


def _rollout(item: JSONObject, index: int, facts: JSONObject) -> Rollout:
    split = facts.get("parts", 1) > 1 and facts.get("trajectory_id") is not None
    given = _at(item.get("advantages"), index)
    reference = _at(item.get("ref_logprobs"), index)
    size = len(item["tokens"][index])
    return Rollout(
        tokens=tuple(item["tokens"][index]),
        trained=(False, *(mask != MASKED for mask in item["masks"][index][1:])),
        logprobs=tuple(item["inference_logprobs"][index]),
        score=item["scores"][index],
        key=str(facts["trajectory_id"]) if split else f"#{index}",
        temperature=_temperature(item, facts),
        versions=_versions(facts),
        muted=bool(facts.get("set_advantage_to_zero")),
        advantages=tuple(given) if given is not None and len(given) == size else None,
        reference=tuple(reference) if reference is not None and len(reference) == size else None,
        teacher=_teacher(item, index, size),
        stop_reason=facts.get("stop_reason"),
        tool_calls=int(facts.get("tool_calls") or 0),
        tool_errors=int(facts.get("tool_errors") or 0),
        kind=str(facts["kind"]) if facts.get("kind") is not None else None,
        success=bool(facts["success"]) if facts.get("success") is not None else None,
    )


def _temperature(item: JSONObject, facts: JSONObject) -> float:
    """Of the sampler: the sequence's own, else the request's, else the group's."""
    for place in (facts, item.get("generation_params"), item.get("group_overrides")):
        if place and place.get("temperature") is not None:
            return float(place["temperature"])
    return 1.0


def _versions(facts: JSONObject) -> tuple[int, ...]:
    named = facts.get("policy_versions") or [facts.get("policy_version")]
    found = (_VERSION.search(name) for name in named if isinstance(name, str))
    return tuple(int(match[1]) for match in found if match)


def _teacher(item: JSONObject, index: int, size: int) -> tuple[float | None, ...] | None:
    """The teacher's logprob of each token, out of its best few; None where the token is not among them."""
    ids, logprobs = _at(item.get("distill_token_ids"), index), _at(item.get("distill_logprobs"), index)
    if ids is None or logprobs is None or not len(ids) == len(logprobs) == size:
        return None
    tokens = item["tokens"][index]
    return tuple(
        dict(zip(best, values, strict=False)).get(token)
        for token, best, values in zip(tokens, ids, logprobs, strict=True)
    )


def _at(values: Sequence[JSON] | None, index: int) -> JSON:
    return values[index] if values is not None and index < len(values) else None
