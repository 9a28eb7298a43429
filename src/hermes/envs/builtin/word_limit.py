"""word_limit: answer a question about a note in few words.

Teaches brevity; the best first demonstration, because even a small model succeeds now and then. Dense reward:
1 within the limit, less with every word beyond it, and 0 for an answer that is wrong or names several
candidates.
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
from hermes.envs.tasks.notes import Note, grade_limit, limit_prompt, make_note
from hermes.envs.tasks.split import Split, draw


class WordLimitConfig(GeneratedEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=64, description="Longest answer, in tokens.")
    limit: int = Field(default=8, ge=2, le=12, description="Most words of a perfect answer.")


class WordLimitEnv(SolvableEnv):
    """Short answers to questions about a note; dense in the number of words."""

    name = "word_limit"
    env_config_cls: ClassVar[Any] = WordLimitConfig
    config: WordLimitConfig

    def generate(self, split: Split) -> Iterator[Note]:
        return draw(make_note, split, self.seed_of(split))

    def format_prompt(self, item: Note) -> str:
        return limit_prompt(item, self.config.limit)

    async def grade(self, item: Note, result: AgentResult, ctx: ToolContext) -> RewardResult:
        return grade_limit(item, result.final_response, self.config.limit)

    def gold(self, item: Note) -> Sequence[Message]:
        return [Message.assistant(f"{item.answer}.")]

    def exploits(self, item: Note) -> Mapping[str, Sequence[Message]]:
        candidates = ", ".join((item.answer, *item.distractors))
        return {
            **super().exploits(item),
            "name them all": [Message.assistant(candidates)],
            "say something short": [Message.assistant("Yes.")],
            "hide words": [Message.assistant("\u200b".join(self.format_prompt(item).split()))],
        }


if __name__ == "__main__":
    WordLimitEnv.cli()
