"""Types of the data that environments exchange, under Atropos's names.

They exist for type checking only: at run time they are dictionaries, as they are sent over HTTP.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Item = Any
"""The value that get_next_item returns and collect_trajectories takes: any value."""
number = int | float
Content = str | list[dict[str, Any]]


class Message(TypedDict):
    role: Literal["system", "user", "assistant", "tool"]
    content: Content
    reward: NotRequired[float | None]


class ScoredDataGroup(TypedDict, total=False):
    """Several answers to one item: the body of one post to the trajectory API."""

    tokens: list[list[int]]
    masks: list[list[int]]
    """The token's id where it is trained on, -100 elsewhere."""
    scores: list[float]
    advantages: list[list[float]] | None
    ref_logprobs: list[list[float]] | None
    messages: list[list[Message]] | None
    generation_params: dict[str, Any] | None
    inference_logprobs: list[list[float]] | None
    """The logprobs of the sampled tokens under the weights that sampled them; 1.0 where masked."""
    group_overrides: dict[str, Any] | None
    overrides: list[dict[str, Any]] | None
    images: Any
    distill_token_ids: list[list[list[int]]] | None
    distill_logprobs: list[list[list[float]]] | None
    env_id: int | None


class ScoredDataItem(TypedDict, total=False):
    """One answer; collect_trajectories joins several into a group."""

    tokens: list[int]
    masks: list[int]
    scores: float
    advantages: list[float] | None
    ref_logprobs: list[float] | None
    messages: list[Message] | None
    generation_params: dict[str, Any] | None
    inference_logprobs: list[float] | None
    group_overrides: dict[str, Any] | None
    overrides: dict[str, Any] | None
    images: Any
    distill_token_ids: list[list[int]] | None
    distill_logprobs: list[list[float]] | None


class Observation(TypedDict):
    raw: dict[str, Any]
    rendered: Content


class GameStep(TypedDict):
    step: int
    agent_id: str
    observation: Observation
    action: str
    reward: float | dict[str, float]
    done: bool
    info: dict[str, Any]


GameHistory = list[GameStep]
