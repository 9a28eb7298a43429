"""directory: in which city a person of a firm works, as the directory of the firm says.

A task does not say it, and no model knows it: the directory is drawn. A text can hold it; weights can learn
to look it up. Training asks about other people than those that are held out, so that what is remembered of
the answers in training is of no use. Reward: 1 for the city in a short answer, less in a longer one, and 0.2
for another city in a short answer.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from hermes.core import Message
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import GeneratedEnv, GeneratedEnvConfig
from hermes.envs.rewards.result import RewardResult
from hermes.envs.tasks.notes import Note, grade_limit
from hermes.envs.tasks.split import Split
from hermes.envs.tasks.vocabulary import CITIES, PEOPLE

PEOPLE_KNOWN = 24
MOST_WORDS = 10
WRONG_CITY = 0.2
"""For a short answer with another city: something that weights alone can learn."""
_QUESTIONS = (
    "Where does {who} work?",
    "In which city is the office of {who}?",
    "Which city should I travel to if I want to meet {who}?",
    "I have a parcel for {who}. To which city does it go?",
    "Name the city that {who} works in.",
    "Tell me the place of work of {who}.",
)


def entries(firm: int) -> list[tuple[str, str]]:
    """Every person of the firm, and the city; no first name twice."""
    rng = random.Random(f"firm {firm}")
    people = {person.split()[0]: person for person in rng.sample(PEOPLE, len(PEOPLE))}.values()
    return [(person, rng.choice(CITIES)) for person in list(people)[:PEOPLE_KNOWN]]


def handbook(firm: int) -> str:
    """The directory as sentences."""
    return "\n".join(f"{person} works in {city}." for person, city in sorted(entries(firm)))


class DirectoryConfig(GeneratedEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=24, description="Longest answer, in tokens.")
    firm: int = Field(
        default_factory=lambda: int(os.environ.get("DIRECTORY_FIRM", "0")),
        description="Whose directory it is.",
    )


class DirectoryEnv(GeneratedEnv):
    """Questions about the people of a firm."""

    name = "directory"
    env_config_cls: ClassVar[Any] = DirectoryConfig
    config: DirectoryConfig

    def generate(self, split: Split) -> Iterator[Note]:
        """Every second person is held out."""
        for question in _QUESTIONS:
            for person, city in entries(self.config.firm)[1 if split is Split.EVAL else 0 :: 2]:
                others = tuple(other for other in CITIES if other != city)
                yield Note(person, question.format(who=person), city, others)

    def format_prompt(self, item: Note) -> str:
        return item.question

    async def grade(self, item: Note, result: AgentResult, ctx: ToolContext) -> RewardResult:
        right = grade_limit(item, result.final_response, MOST_WORDS)
        if right.value or not any(
            grade_limit(replace(item, answer=city, distractors=()), result.final_response, MOST_WORDS).success
            for city in CITIES
        ):
            return right
        return replace(right, value=WRONG_CITY)

    def gold(self, item: Note) -> Sequence[Message]:
        return [Message.assistant(item.answer)]


if __name__ == "__main__":
    DirectoryEnv.cli()
