"""tool_calling: which of these functions to call, how often, and with which arguments.

Teaches function calling on functions that were never seen: requests in plain words, one to five functions on
offer, and one call, several calls or none that are right (simple, multiple, parallel, parallel_multiple,
irrelevant). One turn. Graded argument by argument; binary only if every call is right and there is no other,
shaped with credit for right names and right arguments. With `credit` call the tokens of a call learn from
that call alone, and the decision to go on from whether more was wanted. Functions, not requests, are held
out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

from pydantic import Field, field_validator, model_validator

from hermes.core import JSON, JSONObject, Message, ToolCall
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.rollout import ScoredRollout
from hermes.envs.agent.sequences import MASKED
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import ShapedEnvConfig, tool_calls
from hermes.envs.builtin.solvable import SolvableEnv, asks
from hermes.envs.rewards.result import RewardResult
from hermes.envs.tasks.call_credit import CallMarks, Stretch, advantages, stretches
from hermes.envs.tasks.call_grading import grade_calls
from hermes.envs.tasks.call_mistakes import mistakes
from hermes.envs.tasks.functions import CATEGORIES, Function, FunctionRequest, make_request
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
        description="What a token learns from. rollout: the reward of the whole answer. call: whether its "
        "own call, or the decision to go on or to end, was right, compared with the group at the same place.",
    )

    @field_validator("categories")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        unknown = [name for name in value if name not in CATEGORIES]
        if unknown:
            raise ValueError(f"there is no category {', '.join(unknown)}; there are {', '.join(CATEGORIES)}")
        return value

    @model_validator(mode="after")
    def _calls_are_told_apart(self) -> ToolCallingConfig:
        if self.credit == "call" and self.max_agent_turns != 1:
            raise ValueError("credit 'call' is for answers of one turn: set max_agent_turns to 1")
        if self.credit == "call" and not isinstance(get_parser(self.tool_call_parser), TaggedJSONParser):
            raise ValueError(f"credit 'call' does not know where a {self.tool_call_parser} call ends")
        return self


class ToolCallingEnv(SolvableEnv):
    """Which functions to call and with what, for functions never seen; graded by argument."""

    name = "tool_calling"
    env_config_cls: ClassVar[Any] = ToolCallingConfig
    config: ToolCallingConfig

    def generate(self, split: Split) -> Iterator[FunctionRequest]:
        return distinct(
            lambda chance: make_request(chance, split, self.config.categories), split, self.config.seed
        )

    def format_prompt(self, item: FunctionRequest) -> str:
        return item.text

    def extra_tools(self, item: FunctionRequest) -> Sequence[Tool]:
        return [_tool(function) for function in item.offered]

    async def grade(self, item: FunctionRequest, result: AgentResult, ctx: ToolContext) -> RewardResult:
        schemas = [function.schema for function in item.offered]
        shaped = self.config.reward_mode == "shaped"
        made = tool_calls(result)
        graded = grade_calls(made, item.wanted, schemas, shaped=shaped)
        return replace(graded, detail="; ".join(mistakes(made, item.wanted, schemas)))

    def kind(self, item: FunctionRequest) -> str:
        calls = len(item.wanted)
        return item.category if calls < 2 else f"{item.category}-{calls}"

    def token_advantages(
        self, item: FunctionRequest, scored: Sequence[ScoredRollout]
    ) -> list[list[float]] | None:
        answers = [each.result.sequences for each in scored]
        if self.config.credit == "rollout" or any(len(parts) != 1 for parts in answers):
            return None
        sampled = [[mask for mask in parts[0].masks if mask != MASKED] for parts in answers]
        values = advantages([self._stretches(item, ids) for ids in sampled])
        return [
            [0.0] * (len(parts[0].tokens) - len(earned)) + earned
            for parts, earned in zip(answers, values, strict=True)
        ]

    def _stretches(self, item: FunctionRequest, ids: Sequence[int]) -> list[Stretch]:
        parser = cast(TaggedJSONParser, get_parser(self.config.tool_call_parser))
        tokenizer = self.tokenizer
        said = {one: "" if one == tokenizer.eos_token_id else tokenizer.decode([one]) for one in set(ids)}
        return stretches(
            [str(said[one]) for one in ids],
            CallMarks(f"<{parser.tag}>", f"</{parser.tag}>"),
            lambda text: parser.parse(text).tool_calls,
            item.wanted,
            [function.schema for function in item.offered],
        )

    def gold(self, item: FunctionRequest) -> Sequence[Message]:
        if not item.wanted:
            return [Message.assistant("None of these functions can do that.")]
        return [asks(*((call.name, call.arguments) for call in item.wanted))]

    def exploits(self, item: FunctionRequest) -> Mapping[str, Sequence[Message]]:
        every = [(function.name, _guesses(function.schema)) for function in item.offered]
        return {
            **super().exploits(item),
            "call everything": [asks(*every)],
            "call flood": [asks(*every * 40)],
            "gold and more": [asks(*((call.name, call.arguments) for call in item.wanted), *every)],
        }

    def tool_result(self, item: FunctionRequest, call: ToolCall) -> str:
        return _RESULT


def _tool(function: Function) -> Tool:
    async def handler(arguments: JSONObject, bench: Workbench) -> str:
        return _RESULT

    schema = function.schema
    return Tool(schema["name"], "tool_calling", schema["description"], schema["parameters"], handler)


def _guesses(schema: JSONObject) -> dict[str, JSON]:
    """Arguments of the right types, with nothing of the request in them."""
    plain = {"string": "x", "integer": 1, "number": 1.5, "boolean": False, "array": ["x"]}
    return {
        name: spec.get("enum", [plain[spec["type"]]])[0]
        for name, spec in schema["parameters"]["properties"].items()
    }


if __name__ == "__main__":
    ToolCallingEnv.cli()
