"""A window of steps as cards: a call and its result in one, long texts folded, everything escaped later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hermes.core import Rating, RatingKind, Reward, Step, StepKind, ToolCall
from hermes.safety.forbidden import FORBIDDEN_PATHS
from hermes.store.browse.reader import WindowStep
from hermes.web.render.calls import PLAIN, ShownCall, show_call
from hermes.web.render.text import FoldedText, fold

_ARGUMENT_LINES, _ARGUMENT_CHARS = 30, 4000
_REASONING_LINES = 400
_OUTLINE_CHARS = 48
_RASTER = ("image/png", "image/jpeg", "image/gif", "image/webp")


class CallArgument(NamedTuple):
    name: str
    value: FoldedText
    block: bool
    """Whether it is shown on lines of its own."""


class CardImage(NamedTuple):
    position: int
    address: str
    """Shown as text if the image is not loaded."""
    loadable: bool
    """A raster image that is part of the record; nothing is ever fetched from elsewhere."""


@dataclass(frozen=True, slots=True)
class ResultPart:
    """The result of a tool."""

    step: Step
    text: FoldedText
    images: tuple[CardImage, ...] = ()


@dataclass(frozen=True, slots=True)
class CallPart:
    """A tool call with its result."""

    call: ToolCall
    arguments: tuple[CallArgument, ...]
    malformed: str | None
    """Why the arguments cannot be read; None: they can."""
    result: ResultPart | None
    view: ShownCall = PLAIN


@dataclass(frozen=True, slots=True)
class StepCard:
    step: Step
    text: FoldedText
    reasoning: FoldedText | None
    calls: tuple[CallPart, ...] = ()
    images: tuple[CardImage, ...] = ()
    has_tokens: bool = False
    ratings: tuple[Rating, ...] = ()
    rewards: tuple[Reward, ...] = ()
    result: ResultPart | None = None
    """The result of a tool step whose call is not in the window."""
    forbidden: tuple[str, ...] = ()
    """Paths that its calls name and no task needs."""

    @property
    def index(self) -> int:
        return self.step.index

    @property
    def failed(self) -> bool:
        results = [part.result.step.result for part in self.calls if part.result]
        results += [self.result.step.result] if self.result else []
        return any(result is not None and not result.ok for result in results)

    @property
    def label(self) -> str:
        """The line of the outline."""
        if self.calls:
            names = ", ".join(dict.fromkeys(part.call.name for part in self.calls))
            return names[:_OUTLINE_CHARS]
        if self.step.kind is StepKind.TOOL:
            return (self.step.message.name or "tool")[:_OUTLINE_CHARS]
        words = " ".join(self.step.message.content[:400].split())
        return words[:_OUTLINE_CHARS] or f"({self.step.message.role.value})"


@dataclass(frozen=True, slots=True)
class StepVerdicts:
    """Ratings and rewards, by the step that they are about."""

    by_step: dict[int, list[Rating]] = field(default_factory=dict)
    whole: tuple[Rating, ...] = ()
    rewards_by_step: dict[int, list[Reward]] = field(default_factory=dict)
    rewards: tuple[Reward, ...] = ()
    forbidden_by_step: dict[int, list[str]] = field(default_factory=dict)
    """Paths that no task needs, as an environment found them."""


def sort_verdicts(ratings: Iterable[Rating], rewards: Iterable[Reward]) -> StepVerdicts:
    by_step: dict[int, list[Rating]] = {}
    whole: list[Rating] = []
    for rating in ratings:
        if rating.step_index is not None:
            by_step.setdefault(rating.step_index, []).append(rating)
        elif rating.kind is not RatingKind.STEP:
            whole.append(rating)
    rewards_by_step: dict[int, list[Reward]] = {}
    whole_rewards: list[Reward] = []
    recorded = list(rewards)
    for reward in recorded:
        index = reward.detail.get("step", reward.detail.get("step_index"))
        if isinstance(index, int) and not isinstance(index, bool):
            rewards_by_step.setdefault(index, []).append(reward)
        else:
            whole_rewards.append(reward)
    forbidden = forbidden_by_step(recorded)
    return StepVerdicts(by_step, tuple(whole), rewards_by_step, tuple(whole_rewards), forbidden)


def forbidden_by_step(rewards: Iterable[Reward]) -> dict[int, list[str]]:
    """The forbidden paths that the records of rewards name, each once."""
    paths: dict[int, list[str]] = {}
    for reward in rewards:
        touches = reward.detail.get(FORBIDDEN_PATHS)
        for touch in touches if isinstance(touches, list) else ():
            if isinstance(touch, dict) and isinstance(touch.get("step"), int):
                step_paths = paths.setdefault(touch["step"], [])
                path = str(touch.get("path"))[:_OUTLINE_CHARS]
                if path not in step_paths:
                    step_paths.append(path)
    return paths


def make_cards(window: Sequence[WindowStep], verdicts: StepVerdicts) -> list[StepCard]:
    """One card for each step but the tool results that are shown with their call."""
    steps = [entry.step for entry in window]
    results = {
        step.message.tool_call_id: step
        for step in steps
        if step.kind is StepKind.TOOL and step.message.tool_call_id
    }
    shown_with_call: set[int] = set()
    cards: list[StepCard] = []
    for entry in window:
        step = entry.step
        if step.index in shown_with_call:
            continue
        calls = tuple(_call_part(call, results.get(call.id), step.index) for call in step.message.tool_calls)
        belonging = [part.result.step.index for part in calls if part.result]
        shown_with_call.update(belonging)
        indices = [step.index, *belonging]
        cards.append(
            StepCard(
                step,
                fold(step.message.content, max_lines=60, max_chars=8000),
                _reasoning(step),
                calls,
                _images(step),
                entry.has_tokens,
                tuple(rating for index in indices for rating in verdicts.by_step.get(index, ())),
                tuple(reward for index in indices for reward in verdicts.rewards_by_step.get(index, ())),
                ResultPart(step, fold(step.message.content), _images(step))
                if step.kind is StepKind.TOOL
                else None,
                tuple(verdicts.forbidden_by_step.get(step.index, ())),
            )
        )
    return cards


def read_arguments(call: ToolCall) -> tuple[tuple[CallArgument, ...], str | None]:
    """The arguments by name; the text as it was written, and the problem, if they cannot be read."""
    try:
        parsed = call.parsed()
    except (ValueError, RecursionError) as error:
        written = CallArgument("arguments", fold(call.arguments, _ARGUMENT_LINES, _ARGUMENT_CHARS), True)
        return (written,), str(error) or type(error).__name__
    return tuple(_argument(str(name), value) for name, value in parsed.items()), None


def _argument(name: str, value: object) -> CallArgument:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    folded = fold(text, _ARGUMENT_LINES, _ARGUMENT_CHARS)
    return CallArgument(name, folded, "\n" in text or len(text) > 100)


def _call_part(call: ToolCall, result: Step | None, call_index: int) -> CallPart:
    arguments, problem = read_arguments(call)
    view = PLAIN if problem else show_call(call.name, call.parsed())
    arguments = tuple(argument for argument in arguments if argument.name not in view.shown)
    part = None
    if result is not None and result.index > call_index:
        part = ResultPart(result, fold(result.message.content), _images(result))
    return CallPart(call, arguments, problem, part, view)


def _reasoning(step: Step) -> FoldedText | None:
    reasoning = step.message.reasoning
    return None if not reasoning else fold(reasoning, _REASONING_LINES, 20_000)


def _images(step: Step) -> tuple[CardImage, ...]:
    return tuple(
        CardImage(position, address[:200], raster_type(address) is not None)
        for position, address in enumerate(step.message.images)
    )


def raster_type(address: str) -> str | None:
    """The media type of a data URL that holds a raster image; None for anything else."""
    head, comma, _ = address[:100].partition(",")
    if not comma or not head.lower().startswith("data:") or not head.lower().endswith(";base64"):
        return None
    kind = head[5:-7].lower()
    return kind if kind in _RASTER else None
