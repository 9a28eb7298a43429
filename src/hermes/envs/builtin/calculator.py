"""calculator: sums that are solved by calling a tool, in one or two steps.

Teaches multi-turn tool use that a model of 135 million parameters can learn: call the calculator, read its
result, answer with the number. Graded by the exact value of the final number of the last message. Shaped: 0.1
for an attempted call, 0.2 for one that parses, 0.3 for the right tool, 0.6 for calculating the right value; a
flood of calls is an attempt.

Sums for a calculator: the question, the expression to calculate, and the exact answer.

Two kinds: one operation on two numbers, and two steps, where the second step uses the result of the first. No
number in a question is its answer, so that repeating the question is never right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from hermes.core import Message, ToolCall
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import ShapedEnvConfig, tool_calls
from hermes.envs.builtin.solvable import SolvableEnv, tool_call_turn
from hermes.envs.rewards.number import numeric, read_number
from hermes.envs.rewards.result import RewardResult
from hermes.envs.tasks.split import Split, draw
from hermes.errors import ToolError
from hermes.tools.builtin.calculator import calculate

_ATTEMPT = 0.1


class CalculatorConfig(ShapedEnvConfig):
    max_agent_turns: int = Field(default=4, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=96, description="Longest answer of one call, in tokens.")
    system_prompt: str | None = Field(
        default="Use the calculator for every calculation. Then answer with the number alone.",
        description="System prompt.",
    )
    two_step_share: float = Field(default=0.3, ge=0, le=1, description="Share of sums with two steps.")


class CalculatorEnv(SolvableEnv):
    """Sums solved by calling a calculator; 1 if the final answer is the right number."""

    name = "calculator"
    env_config_cls: ClassVar[Any] = CalculatorConfig
    config: CalculatorConfig
    default_toolsets: ClassVar[Sequence[str]] = ("math",)

    def generate(self, split: Split) -> Iterator[Sum]:
        return draw(self._make, split, self.seed_of(split))

    def _make(self, rng: random.Random) -> Sum:
        return two_steps(rng) if rng.random() < self.config.two_step_share else one_step(rng)

    def level(self, item: Sum) -> int:
        return len(item.steps) - 1

    def format_prompt(self, item: Sum) -> str:
        return item.question

    async def grade(self, item: Sum, result: AgentResult, ctx: ToolContext) -> RewardResult:
        right = numeric(result.final_response, item.answer)
        progress = _progress(item, tool_calls(result))
        value = max(right.value, progress) if self.config.reward_mode == "shaped" else right.value
        parts = {"right": right.value, "way": progress, "success": right.value}
        return RewardResult(value, parts, right.detail)

    def gold(self, item: Sum) -> Sequence[Message]:
        steps = [tool_call_turn(("calculator", {"expression": step})) for step in item.steps]
        return [*steps, Message.assistant(item.answer)]

    def tool_result(self, item: Sum, call: ToolCall) -> str:
        return calculate(str(call.parsed()["expression"]))


def _progress(item: Sum, calls: Sequence[ToolCall]) -> float:
    """Shaped credit for the way. More than twice the calls that the sum needs are guesses: an attempt."""
    best = max((_call_progress(item, call) for call in calls), default=0.0)
    return best if len(calls) <= 2 * len(item.steps) else min(best, _ATTEMPT)


def _call_progress(item: Sum, call: ToolCall) -> float:
    """Shaped credit for a call."""
    try:
        arguments = call.parsed()
    except (ValueError, RecursionError):
        return _ATTEMPT
    if call.name != "calculator":
        return 0.2
    expression = str(arguments.get("expression", ""))
    try:
        value = calculate(expression)
    except ToolError:
        return 0.3
    is_guess = read_number(expression) is not None  # a number alone is looked up, not calculated
    return 0.6 if value == item.answer and not is_guess else 0.3


if __name__ == "__main__":
    CalculatorEnv.cli()


_SYMBOLS = {"plus": "+", "minus": "-", "times": "*"}
_ONE_STEP = (
    "What is {a} {op} {b}?",
    "Calculate {a} {op} {b}.",
    "How much is {a} {op} {b}?",
    "{a} {op} {b} = ?",
)
_TWO_STEPS = (
    "What is ({a} {op} {b}) {op2} {c}?",
    "Take {a} {op} {b}, then {word2} {c}. What do you get?",
    "Work out {a} {op} {b} first. Then take the result {word2} {c}.",
)


@dataclass(frozen=True, slots=True)
class Sum:
    question: str
    expression: str
    """In the calculator's syntax."""
    steps: tuple[str, ...]
    """The expressions of the calculator calls, in order."""
    answer: str
    key: str
    """The numbers and operations in canonical order: 2 + 3 and 3 + 2 have the same key."""


def one_step(rng: random.Random, digits: int = 4) -> Sum:
    """An addition, subtraction or multiplication of numbers with 2 to `digits` digits."""
    while True:
        word, symbol = rng.choice(list(_SYMBOLS.items()))
        a, b = _number(rng, digits), _number(rng, digits)
        expression = f"{a} {symbol} {b}"
        total = calculate(expression)
        if total in (str(a), str(b)):
            continue
        question = rng.choice(_ONE_STEP).format(a=a, b=b, op=rng.choice((word, symbol)))
        return Sum(question, expression, (expression,), total, _key((a, b), symbol))


def two_steps(rng: random.Random, digits: int = 3) -> Sum:
    while True:
        (word, symbol), (word2, symbol2) = (rng.choice(list(_SYMBOLS.items())) for _ in range(2))
        a, b, c = (_number(rng, digits) for _ in range(3))
        first = f"{a} {symbol} {b}"
        middle = calculate(first)
        last = f"{middle} {symbol2} {c}"
        total = calculate(last)
        if total in (str(a), str(b), str(c), middle):
            continue
        question = rng.choice(_TWO_STEPS).format(
            a=a, b=b, c=c, op=rng.choice((word, symbol)), op2=symbol2, word2=word2
        )
        key = _key((a, b, c), symbol + symbol2)
        return Sum(question, f"({first}) {symbol2} {c}", (first, last), total, key)


def _key(numbers: Sequence[int], symbols: str) -> str:
    return f"{' '.join(map(str, sorted(numbers)))} {''.join(sorted(symbols))}"


def _number(rng: random.Random, digits: int) -> int:
    size = rng.randint(2, digits)
    return rng.randint(10 ** (size - 1), 10**size - 1)
