"""tool_calling: which functions to call, how often, and with which arguments.

Teaches function calling on functions the policy has never seen: a request in natural language, one to five
functions on offer, and one, several or no expected calls (simple, multiple, parallel, parallel_multiple,
irrelevant). One turn, graded argument by argument. Binary: 1 only if the calls are exactly the expected ones.
Shaped: credit for right names and right arguments. With `credit=call` the tokens of a call are credited for
that call alone, and the decision to go on for whether more calls were expected. Functions, not requests, are
held out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

from pydantic import Field, field_validator, model_validator

from hermes.core import JSON, JSONObject, Message, ToolCall
from hermes.core.sequence import MASKED
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.rollout import ScoredRollout
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import ShapedEnvConfig, tool_calls
from hermes.envs.builtin.solvable import SolvableEnv, tool_call_turn
from hermes.envs.rewards.result import RewardResult
from hermes.envs.tasks.functions.grading import (
    CallMarks,
    CreditSegment,
    credit_segments,
    grade_calls,
    mistakes,
    token_advantages,
)
from hermes.envs.tasks.functions.requests import CATEGORIES, Function, FunctionRequest, make_request
from hermes.envs.tasks.split import Split, distinct
from hermes.models.parsers import get_parser
from hermes.models.parsers.hermes import TaggedJSONParser
from hermes.tools.base import Tool, Workbench

_RESULT = json.dumps({"status": "done"})


class ToolCallingConfig(ShapedEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=256, description="Longest answer, in tokens.")
    system_prompt: str | None = Field(
        default="Call the functions the user needs. If none of them fits, say so and call nothing.",
        description="System prompt.",
    )
    categories: list[str] = Field(
        default=list(CATEGORIES), min_length=1, description=f"Kinds of requests: {', '.join(CATEGORIES)}."
    )
    credit: Literal["rollout", "call"] = Field(
        default="rollout",
        description="What a token is credited for. rollout: the reward of the whole answer. call: its own "
        "call, or the decision to go on or to end, compared with the group at the same position.",
    )

    @field_validator("categories")
    @classmethod
    def _check_categories(cls, value: list[str]) -> list[str]:
        unknown = [name for name in value if name not in CATEGORIES]
        if unknown:
            raise ValueError(f"there is no category {', '.join(unknown)}; there are {', '.join(CATEGORIES)}")
        return value

    @model_validator(mode="after")
    def _check_credit(self) -> ToolCallingConfig:
        if self.credit == "call" and self.max_agent_turns != 1:
            raise ValueError("credit 'call' is for answers of one turn: set max_agent_turns to 1")
        if self.credit == "call" and not isinstance(get_parser(self.tool_call_parser), TaggedJSONParser):
            raise ValueError(
                f"credit 'call' does not support the parser {self.tool_call_parser}: its calls have no tags"
            )
        return self


class ToolCallingEnv(SolvableEnv):
    """Function calling on held-out functions; graded argument by argument."""

    name = "tool_calling"
    env_config_cls: ClassVar[Any] = ToolCallingConfig
    config: ToolCallingConfig

    def generate(self, split: Split) -> Iterator[FunctionRequest]:
        return distinct(
            lambda rng: make_request(rng, split, self.config.categories), split, self.seed_of(split)
        )

    def format_prompt(self, item: FunctionRequest) -> str:
        return item.text

    def extra_tools(self, item: FunctionRequest) -> Sequence[Tool]:
        return [_tool(function) for function in item.offered]

    async def grade(self, item: FunctionRequest, result: AgentResult, ctx: ToolContext) -> RewardResult:
        schemas = [function.schema for function in item.offered]
        shaped = self.config.reward_mode == "shaped"
        calls = tool_calls(result)
        graded = grade_calls(calls, item.expected_calls, schemas, shaped=shaped)
        return replace(graded, detail="; ".join(mistakes(calls, item.expected_calls, schemas)))

    def kind(self, item: FunctionRequest) -> str:
        calls = len(item.expected_calls)
        return item.category if calls < 2 else f"{item.category}-{calls}"

    def token_advantages(
        self, item: FunctionRequest, scored: Sequence[ScoredRollout]
    ) -> list[list[float]] | None:
        rollouts = [rollout.result.sequences for rollout in scored]
        if self.config.credit == "rollout" or any(len(sequences) != 1 for sequences in rollouts):
            return None
        sampled = [[mask for mask in sequences[0].masks if mask != MASKED] for sequences in rollouts]
        advantages = token_advantages([self._segments(item, ids) for ids in sampled])
        return [
            [0.0] * (len(sequences[0].tokens) - len(values)) + values
            for sequences, values in zip(rollouts, advantages, strict=True)
        ]

    def _segments(self, item: FunctionRequest, ids: Sequence[int]) -> list[CreditSegment]:
        parser = cast(TaggedJSONParser, get_parser(self.config.tool_call_parser))
        tokenizer = self.tokenizer
        texts = {
            token: "" if token == tokenizer.eos_token_id else str(tokenizer.decode([token]))
            for token in set(ids)
        }
        return credit_segments(
            [texts[token] for token in ids],
            CallMarks(f"<{parser.tag}>", f"</{parser.tag}>"),
            lambda text: parser.parse(text).tool_calls,
            item.expected_calls,
            [function.schema for function in item.offered],
        )

    def gold(self, item: FunctionRequest) -> Sequence[Message]:
        if not item.expected_calls:
            return [Message.assistant("None of these functions can do that.")]
        return [tool_call_turn(*((call.name, call.arguments) for call in item.expected_calls))]

    def exploits(self, item: FunctionRequest) -> Mapping[str, Sequence[Message]]:
        gold = [(call.name, call.arguments) for call in item.expected_calls]
        guesses = [(function.name, _placeholders(function.schema)) for function in item.offered]
        return {
            **super().exploits(item),
            "call everything": [tool_call_turn(*guesses)],
            "call flood": [tool_call_turn(*guesses * 40)],
            "gold and more": [tool_call_turn(*gold, *guesses)],
        }

    def tool_result(self, item: FunctionRequest, call: ToolCall) -> str:
        return _RESULT


def _tool(function: Function) -> Tool:
    async def handler(arguments: JSONObject, bench: Workbench) -> str:
        return _RESULT

    schema = function.schema
    return Tool(schema["name"], "tool_calling", schema["description"], schema["parameters"], handler)


def _placeholders(schema: JSONObject) -> dict[str, JSON]:
    """Arguments of the right types that do not depend on the request."""
    values = {"string": "x", "integer": 1, "number": 1.5, "boolean": False, "array": ["x"]}
    return {
        name: spec.get("enum", [values[spec["type"]]])[0]
        for name, spec in schema["parameters"]["properties"].items()
    }


if __name__ == "__main__":
    ToolCallingEnv.cli()
