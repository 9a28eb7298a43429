"""format: answer a question about a note in exactly the requested form.

Teaches output forms: a tag, a JSON object, a list of two lines, one sentence. Dense reward: a fifth for the
right answer in a short text, the rest in equal parts for each rule of the form. Form without the right answer
earns nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from hermes.core import Message
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import GeneratedEnvConfig
from hermes.envs.builtin.solvable import SolvableEnv
from hermes.envs.rewards.result import RewardResult
from hermes.envs.tasks.notes import FormTask, form_gold, form_prompt, grade_form, make_form_task
from hermes.envs.tasks.split import Split, draw


class FormatConfig(GeneratedEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=64, description="Longest answer, in tokens.")


class FormatEnv(SolvableEnv):
    """Answers in exactly the requested form; dense in the rules of the form."""

    name = "format"
    env_config_cls: ClassVar[Any] = FormatConfig
    config: FormatConfig

    def generate(self, split: Split) -> Iterator[FormTask]:
        return draw(make_form_task, split, self.seed_of(split))

    def format_prompt(self, item: FormTask) -> str:
        return form_prompt(item)

    async def grade(self, item: FormTask, result: AgentResult, ctx: ToolContext) -> RewardResult:
        return grade_form(item, result.final_response)

    def gold(self, item: FormTask) -> Sequence[Message]:
        return [Message.assistant(form_gold(item))]

    def exploits(self, item: FormTask) -> Mapping[str, Sequence[Message]]:
        empty = form_gold(item).replace(item.note.answer, "")
        candidates = ", ".join((item.note.answer, *item.note.distractors))
        all_candidates = form_gold(item).replace(item.note.answer, candidates)
        return {
            **super().exploits(item),
            "empty form": [Message.assistant(empty)],
            "name them all": [Message.assistant(all_candidates)],
        }


if __name__ == "__main__":
    FormatEnv.cli()
