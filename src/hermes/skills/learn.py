"""Drafts a skill from a trajectory that succeeded. The draft is text for a person to edit; nothing is
installed.

The draft holds what the record holds: the task, the calls that worked in their order, the mistakes on the
way and the answer. It does not generalise: that is the editor's work, and the draft says where.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hermes.core import Role, Step, StepKind, ToolCall, Trajectory
from hermes.errors import UsageError
from hermes.skills.skill import MAX_NAME_CHARS
from hermes.store import Filter, Reader

_MAX_BLOCK_CHARS = 2000
_MAX_TEXT_CHARS = 1200
_MIN_GOOD_RATING = 4.0
_COMMAND_FIELDS = {"command": "bash", "code": "python"}
_TRIVIAL_WORDS = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "at",
        "for",
        "from",
        "how",
        "in",
        "is",
        "it",
        "of",
        "on",
        "or",
        "please",
        "that",
        "the",
        "then",
        "this",
        "to",
        "what",
        "with",
    ]
)


@dataclass(frozen=True, slots=True)
class SkillDraft:
    name: str
    trajectory_id: str
    text: str
    """A whole SKILL.md."""


def choose_trajectory(reader: Reader, reference: str) -> Trajectory:
    """The trajectory of that id, or the best successful one of the run of that name.

    Raises `UsageError` where the trajectory, or all of the run's, did not succeed.
    """
    candidates = list(reader.trajectories(Filter(run_id=reference)))
    if not candidates:
        trajectory = reader.get(reader.resolve(reference))
        if (problem := failure(reader, trajectory)) is not None:
            raise UsageError(
                f"trajectory {trajectory.header.id} did not succeed: {problem}.",
                "A skill is learned from work that went well; choose another one.",
            )
        return trajectory
    successful = [trajectory for trajectory in candidates if failure(reader, trajectory) is None]
    if not successful:
        raise UsageError(
            f"none of the {len(candidates)} trajectories of the run '{reference}' succeeded.",
            "Rate one as good, or choose another run.",
        )
    return max(successful, key=lambda trajectory: (_best_reward(reader, trajectory), -trajectory.turns))


def failure(reader: Reader, trajectory: Trajectory) -> str | None:
    """Why the trajectory is no success; None: it completed, and no verdict on it is bad."""
    outcome = trajectory.outcome
    if outcome is None:
        return "it has not ended"
    if outcome.boundary is not None:
        return f"it ended with '{outcome.stop_reason.value}'"
    trajectory_id = trajectory.header.id
    if any(reward.value <= 0 for reward in reader.rewards(trajectory_id)):
        return "a reward function gave it no reward"
    if reader.count(Filter(ids=(trajectory_id,), max_rating=_MIN_GOOD_RATING - 0.01)):
        return "a rater rated it below good"
    if not any(step.kind is StepKind.TOOL for step in trajectory.steps):
        return "it called no tool, so there is no procedure in it"
    return None


def draft_skill(trajectory: Trajectory, name: str | None = None) -> SkillDraft:
    """The text of a skill that repeats what the trajectory did."""
    task = next((message.content for message in trajectory.messages if message.role is Role.USER), "")
    name = name or suggest_name(task)
    calls = list(_called(trajectory.steps))
    good = [(call, step) for call, step in calls if step.result is not None and step.result.ok]
    bad = [(call, step) for call, step in calls if step.result is not None and not step.result.ok]
    summary = " ".join(task.split())
    description = json.dumps(_cut(f"{summary} Use when a task like this comes up.", 200), ensure_ascii=False)
    parts = [
        "---",
        f"name: {name}",
        f"description: {description}",
        "version: 0.1.0",
        "metadata:",
        "  hermes:",
        "    packages: []",
        f"    learned_from: {trajectory.header.id}",
        "---",
        "",
        f"# {name.replace('-', ' ').capitalize()}",
        "",
        f"Drafted from trajectory {trajectory.header.id} ({trajectory.header.model}). Edit it before you",
        "install it: say in the description when to use it, replace what belongs only to this task by",
        "placeholders, and remove steps that were not needed.",
        "",
        "## The task it was learned from",
        "",
        _quote(_cut(task, _MAX_TEXT_CHARS)),
        "",
        "## Steps that worked",
        "",
        *_steps(good),
    ]
    if bad:
        parts += ["## What did not work", "", *(_failed_line(call, step) for call, step in bad), ""]
    parts += ["## What the result looks like", "", _quote(_cut(trajectory.answer, _MAX_TEXT_CHARS)), ""]
    return SkillDraft(name, trajectory.header.id, "\n".join(parts))


def suggest_name(task: str) -> str:
    """A skill name from the first words of the task that carry meaning."""
    words = [word for word in re.findall(r"[a-z0-9]+", task.lower()) if word not in _TRIVIAL_WORDS]
    return "-".join(words[:4])[:MAX_NAME_CHARS].strip("-") or "learned-skill"


def _best_reward(reader: Reader, trajectory: Trajectory) -> float:
    return max((reward.value for reward in reader.rewards(trajectory.header.id)), default=0.0)


def _called(steps: Sequence[Step]) -> list[tuple[ToolCall, Step]]:
    calls = {call.id: call for step in steps for call in step.message.tool_calls}
    return [
        (calls[step.message.tool_call_id], step)
        for step in steps
        if step.kind is StepKind.TOOL and step.message.tool_call_id in calls
    ]


def _steps(calls: Sequence[tuple[ToolCall, Step]]) -> list[str]:
    lines: list[str] = []
    for number, (call, _) in enumerate(calls, 1):
        lines += [f"{number}. `{call.name}`", "", *_call_block(call), ""]
    return lines


def _call_block(call: ToolCall) -> list[str]:
    """The command or code of a call as a block of its language, other arguments as JSON."""
    try:
        arguments = call.parsed()
    except ValueError:
        return ["```text", _fenced(call.arguments), "```"]
    for field, language in _COMMAND_FIELDS.items():
        if isinstance(arguments.get(field), str):
            return [f"```{language}", _fenced(arguments[field]), "```"]
    return ["```json", _fenced(json.dumps(arguments, ensure_ascii=False, indent=1)), "```"]


def _failed_line(call: ToolCall, step: Step) -> str:
    arguments = " ".join(call.arguments.split())
    reason = " ".join(step.message.content.split())
    return f"- `{call.name}` with `{_cut(arguments.replace('`', chr(39)), 160)}`: {_cut(reason, 200)}"


def _fenced(text: str) -> str:
    """Text that cannot close its block."""
    return _cut(text.rstrip("\n"), _MAX_BLOCK_CHARS).replace("```", "'''")


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines()) or "> (empty)"


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1].rstrip() + "…"
