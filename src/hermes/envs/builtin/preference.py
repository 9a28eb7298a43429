"""preference: answers without a right solution, scored by a reward model.

The environment for RLHF. Its prompts are those of a file (`dataset_name`), or else generated instructions for
short pieces of writing. A reward model behind vLLM's pooling API, such as `hermes reward serve`, scores the
whole conversation with its tool calls; the score, through a sigmoid, is the reward. If the reward model
cannot be reached, that is a failure of the grader. An empty answer gets 0 without a request.

Where `true_reward` names a function, its value is reported beside the reward and never trained on: with it a
run shows whether the policy gets better or only better at pleasing the reward model.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from hermes.batch.reward import RewardFunction, load_reward, score
from hermes.batch.tasks import TaskRow, read_dataset
from hermes.core import JSONObject, Message, Role
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import GeneratedEnv, GeneratedEnvConfig
from hermes.envs.builtin.reward_function import check_rows, split
from hermes.envs.rewards.http import RewardModel
from hermes.envs.rewards.result import TRUE_REWARD, RewardResult, failed
from hermes.envs.tasks.split import Split, draw
from hermes.envs.tasks.vocabulary import CITIES, COLOURS, PEOPLE, SUBJECTS, THINGS
from hermes.errors import ConfigError

_FORMS = (
    "Write a two-sentence thank-you note to {person} for the {colour} {thing}.",
    "Explain {subject} to a child in one short paragraph.",
    "Describe a {colour} {thing} so that somebody in {city} would want to buy it.",
    "Give {person} three tips for a first day of {subject}.",
    "Write a polite message to {person}, saying that the {thing} will arrive in {city} a day late.",
    "Tell a four-sentence story about {person} and a lost {thing} in {city}.",
    "Suggest a plan for an afternoon in {city} with a friend who loves {subject}.",
    "Politely decline {person}'s offer to trade a {thing} for lessons in {subject}.",
)


@dataclass(frozen=True, slots=True)
class Instruction:
    text: str

    @property
    def key(self) -> str:
        return self.text


def instruction(rng: random.Random) -> Instruction:
    return Instruction(
        rng.choice(_FORMS).format(
            person=rng.choice(PEOPLE),
            colour=rng.choice(COLOURS),
            thing=rng.choice(THINGS),
            city=rng.choice(CITIES),
            subject=rng.choice(SUBJECTS),
        )
    )


Item = Instruction | TaskRow


class PreferenceConfig(GeneratedEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=200, description="Longest answer, in tokens.")
    reward_model_url: str = Field(
        default="http://localhost:8002", description="Address of the reward model; requests go to /pooling."
    )
    reward_model_name: str = Field(default="reward", description="The reward model's name there.")
    dataset_name: str | None = Field(
        default=None, description="Prompts: a JSONL, JSON, CSV or Parquet file. Default: generated ones."
    )
    true_reward: str = Field(
        default="", description="A function that measures what the score stands for: FILE.py:FUNCTION."
    )


class PreferenceEnv(GeneratedEnv):
    """Answers without a right solution, scored by a reward model."""

    name = "preference"
    env_config_cls: ClassVar[Any] = PreferenceConfig
    config: PreferenceConfig

    async def setup(self) -> None:
        self._reward_model = RewardModel(self.config.reward_model_url, self.config.reward_model_name)
        self._true_reward: RewardFunction | None = None
        if self.config.true_reward:
            if not self.config.dataset_name:
                raise ConfigError(
                    "true_reward measures answers to the prompts of a file, and there is none.",
                    "Set dataset_name as well.",
                )
            self._true_reward = load_reward(self.config.true_reward)
        await super().setup()

    def _load(self) -> tuple[list[Any], list[Any]]:
        if self.config.dataset_name is None:
            return super()._load()
        rows = check_rows(read_dataset(self.config.dataset_name, prompt_field=self.config.prompt_field)).rows
        train, held_out = split(rows, _EVAL_SHARE)
        if not train:
            raise ConfigError(f"{self.config.dataset_name} has no prompts.", "Name a file with prompts.")
        return train, held_out or train[:1]

    def generate(self, split: Split) -> Iterator[Instruction]:
        return draw(instruction, split, self.seed_of(split))

    def format_prompt(self, item: Item) -> str:
        return item.text if isinstance(item, Instruction) else item.prompts[0]

    def opening(self, item: Item) -> Sequence[Message]:
        history = item.history if isinstance(item, TaskRow) else ()
        return [*super().opening(item), *history]

    def workspace_files(self, item: Item) -> Mapping[str, bytes]:
        files = item.files if isinstance(item, TaskRow) else {}
        return {path: text.encode("utf-8", "surrogatepass") for path, text in files.items()}

    async def grade(self, item: Item, result: AgentResult, ctx: ToolContext) -> RewardResult:
        reward = failed("the answer is empty")
        if result.final_response.strip():
            reward = await self._reward_model.grade(_conversation(result))
        if self._true_reward is not None and isinstance(item, TaskRow):
            value = await score(self._true_reward, item, result.trajectory, ctx.open_sandbox)
            reward = reward.with_parts({TRUE_REWARD: value})
        return reward

    async def close(self) -> None:
        await self._reward_model.close()
        await super().close()


_EVAL_SHARE = 0.1


def _conversation(result: AgentResult) -> list[JSONObject]:
    """The text that the reward model reads: everything up to the last answer, results of tools included."""
    messages = list(result.trajectory.messages)
    while messages and messages[-1].role is not Role.ASSISTANT:
        messages.pop()
    return [_turn(message) for message in messages]


def _turn(message: Message) -> JSONObject:
    turn: JSONObject = {"role": message.role.value, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role is Role.TOOL:
        turn |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return turn


if __name__ == "__main__":
    PreferenceEnv.cli()
