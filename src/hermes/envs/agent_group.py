"""From scored rollouts to the group that a trainer or a file gets. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hermes.envs.types import ScoredDataGroup

if TYPE_CHECKING:
    from hermes.envs.agent_config import HermesAgentEnvConfig
    from hermes.envs.agent_rollout import Scored


def as_group(scored: Sequence[Scored], config: HermesAgentEnvConfig) -> ScoredDataGroup:
    """Every exact context of every rollout, with its rollout's score.

    A rollout whose template rewrote the history has several; `overrides` says which belong together. One
    without exact tokens has an empty sequence and says why: there is nothing in it to train on.
    """
    tokens: list[list[int]] = []
    masks: list[list[int]] = []
    logprobs: list[list[float]] = []
    scores: list[float] = []
    messages: list[list[Any]] = []
    overrides: list[dict[str, Any]] = []
    for each in scored:
        parts = [(part.tokens, part.masks, part.logprobs) for part in each.result.sequences] or [((), (), ())]
        for number, (ids, mask, logprob) in enumerate(parts):
            tokens.append(list(ids))
            masks.append(list(mask))
            logprobs.append(list(logprob))
            scores.append(each.reward.value)
            messages.append(each.result.messages)
            overrides.append(_facts(each, number, len(parts)))
    group: ScoredDataGroup = {
        "tokens": tokens,
        "masks": masks,
        "scores": scores,
        "inference_logprobs": logprobs,
        "overrides": overrides,
        "generation_params": {"temperature": config.agent_temperature},
    }
    if config.include_messages:
        group["messages"] = messages
    if len(tokens) != config.group_size:
        group["group_overrides"] = {"group_size": len(tokens)}
    return group


def _facts(scored: Scored, part: int, parts: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"trajectory_id": scored.result.trajectory.header.id}
    if parts > 1:
        facts |= {"part": part, "parts": parts}
    if scored.result.exactness.inexact is not None:
        facts["not_trainable"] = scored.result.exactness.inexact
    return facts
