"""word_problems: generated word problems in GSM8K's form, with the answer after `####`.

Teaches reasoning in text, offline. Graded by the value of the answer (math-verify). A problem has two to four
steps, a chain of sentences that change one quantity, with a solution that ends with `#### answer`. They are
easier than GSM8K and do not replace it: the environment `gsm8k` has that benchmark.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field

from hermes.core import Message
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import GeneratedEnvConfig
from hermes.envs.builtin.solvable import SolvableEnv
from hermes.envs.rewards.mathematics import MathGrader
from hermes.envs.rewards.result import RewardResult
from hermes.envs.tasks.split import Split, draw
from hermes.envs.tasks.vocabulary import PEOPLE, THINGS


class WordProblemsConfig(GeneratedEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=512, description="Longest answer, in tokens.")


class WordProblemsEnv(SolvableEnv):
    """Generated word problems; 1 if the answer has the right value."""

    name = "word_problems"
    env_config_cls: ClassVar[Any] = WordProblemsConfig
    config: WordProblemsConfig

    @cached_property
    def _math(self) -> MathGrader:
        return MathGrader()

    def generate(self, split: Split) -> Iterator[WordProblem]:
        return draw(word_problem, split, self.seed_of(split))

    def format_prompt(self, item: WordProblem) -> str:
        return f"{item.question}\n\nThink step by step. End with #### and the number."

    async def grade(self, item: WordProblem, result: AgentResult, ctx: ToolContext) -> RewardResult:
        return await asyncio.to_thread(self._math.grade, result.final_response, item.answer)

    def gold(self, item: WordProblem) -> Sequence[Message]:
        return [Message.assistant(item.solution)]

    async def close(self) -> None:
        self._math.close()
        await super().close()


if __name__ == "__main__":
    WordProblemsEnv.cli()


_STEPS = (
    ("{name} buys {n} more.", "+"),
    ("{name} gets {n} as a present.", "+"),
    ("{name} gives {n} to a friend.", "-"),
    ("{name} loses {n}.", "-"),
    ("A neighbour brings enough to make it {n} times as many.", "*"),
    ("{name} shares them equally among {n} boxes and keeps one box.", "/"),
)


@dataclass(frozen=True, slots=True)
class WordProblem:
    question: str
    solution: str
    """Worked out, ending with `#### answer`."""
    answer: str

    @property
    def key(self) -> str:
        return self.question


def word_problem(rng: random.Random) -> WordProblem:
    name, noun = rng.choice(PEOPLE), rng.choice(THINGS)
    count = rng.randint(6, 60)
    story, work = [f"{name} has {count} {noun}s."], []
    used = {count}
    for _ in range(rng.randint(2, 4)):
        sentence, symbol = rng.choice(_STEPS)
        number = _operand(rng, count, symbol)
        if number is None:
            continue
        result = {"+": count + number, "-": count - number, "*": count * number, "/": count // number}[symbol]
        story.append(sentence.format(name=name.split()[0], n=number))
        work.append(f"{count} {symbol} {number} = {result}.")
        used.add(number)
        count = result
    if count in used or not work:
        return word_problem(rng)
    question = f"{' '.join(story)} How many {noun}s does {name.split()[0]} have now?"
    return WordProblem(question, f"{' '.join(work)}\n#### {count}", str(count))


def _operand(rng: random.Random, count: int, symbol: str) -> int | None:
    """A number that keeps the story plausible; None if there is none."""
    if symbol == "+":
        return rng.randint(2, 40)
    if symbol == "-":
        return rng.randint(2, count - 2) if count > 4 else None
    if symbol == "*":
        return rng.randint(2, 4) if count < 500 else None
    divisors = [number for number in range(2, 10) if count % number == 0 and count > number]
    return rng.choice(divisors) if divisors else None
