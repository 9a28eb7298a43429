"""calculator: sums that are solved by calling a tool, in one or two steps.

Teaches multi-turn tool use that a model of 135 million parameters can learn: call the calculator, read its
result, answer with the number. Graded by the exact value of the final number of the last message. Shaped: 0.1
for an attempted call, 0.2 for one that parses, 0.3 for the right tool, 0.6 for calculating the right value; a
flood of calls is an attempt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic import Field

from hermes.core import Message, ToolCall
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import ShapedEnvConfig, tool_calls
from hermes.envs.builtin.solvable import SolvableEnv, tool_call_turn
from hermes.envs.rewards.number import numeric, read_number
from hermes.envs.rewards.result import RewardResult
from hermes.envs.tasks.arithmetic import Sum, one_step, two_steps
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
