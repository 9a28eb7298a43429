"""Does a skill help? The same tasks with it and without it, and the difference with its interval.

The agent is the one that will use the skill: it sees the skill in its list and opens it, or does not. A skill
that is never opened has no effect, and the trial says how often it was opened.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hermes.core import JSONObject, Trajectory
from hermes.core.stats import Interval, bootstrap, interval
from hermes.core.texts import SKILL
from hermes.errors import UsageError
from hermes.policies.text.search import Evaluator
from hermes.policies.text.signal import TaskScore, TextTask
from hermes.skills.skill import Skill
from hermes.skills.trials import HELPS

_FEWEST = 10
_VIEW_TOOL = "skill_view"


@dataclass(frozen=True, slots=True)
class Side:
    """The tasks with the skill, or without it."""

    score: Interval
    tokens: float
    """Mean of a task."""
    cost_usd: float | None
    """The cost of all tasks; None: a price is unknown."""

    @classmethod
    def of(cls, scores: Sequence[TaskScore]) -> Side:
        costs = [score.cost_usd for score in scores]
        return cls(
            interval([score.score for score in scores]),
            sum(score.tokens for score in scores) / len(scores),
            None if None in costs else sum(cost or 0.0 for cost in costs),
        )


@dataclass(frozen=True, slots=True)
class SkillTrial:
    skill: str
    tasks: int
    opened: int
    """Tasks in which the agent opened it."""
    having: Side
    lacking: Side
    effect: Interval
    """The difference of the scores, task by task."""

    @property
    def verdict(self) -> str:
        if self.effect.low > 0:
            return HELPS
        return "harms" if self.effect.high < 0 else "not shown to help"


async def run_trial(
    skill: Skill,
    tasks: Sequence[TextTask],
    evaluator: Evaluator,
    trajectory_of: Callable[[str], Trajectory],
) -> SkillTrial:
    """UsageError if there are too few tasks for an interval, also because the money was spent before."""
    offered = {f"{SKILL}{skill.name}": skill.body} if skill.learned_from else {}
    having: list[TaskScore] = []
    lacking: list[TaskScore] = []
    for start in range(0, len(tasks), evaluator.at_once):
        if evaluator.ledger.spending.cost_reached:
            break
        chunk = tasks[start : start + evaluator.at_once]
        sides = (evaluator.scores(offered, chunk), evaluator.scores({f"{SKILL}{skill.name}": ""}, chunk))
        with_skill, without = await asyncio.gather(*sides)
        having += with_skill
        lacking += without
    if len(having) < _FEWEST:
        raise UsageError(
            f"{len(having)} tasks are too few to show an effect",
            f"bring {_FEWEST} or more, and the money for them; forty are a good start",
        )
    differences = [
        having_score.score - lacking_score.score
        for having_score, lacking_score in zip(having, lacking, strict=True)
    ]
    opened = sum(_opens(trajectory_of(score.trajectory_id), skill.name) for score in having)
    effect = bootstrap(differences)
    return SkillTrial(skill.name, len(having), opened, Side.of(having), Side.of(lacking), effect)


def _opens(trajectory: Trajectory, skill: str) -> bool:
    calls = (call for message in trajectory.messages for call in message.tool_calls)
    return any(call.name == _VIEW_TOOL and _skill_name(call.arguments) == skill for call in calls)


def _skill_name(arguments: str) -> str | None:
    try:
        data: JSONObject = json.loads(arguments)
        name = data.get("name")
    except (ValueError, AttributeError):
        return None
    return name.rpartition("/")[2] if isinstance(name, str) else None
