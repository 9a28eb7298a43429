"""reasoning_gym: the puzzles of the reasoning-gym package, one data set or several.

Teaches what the chosen generators test; there are more than a hundred. Graded by the data set's own scorer,
in a separate process and never on text that could be a program. Binary: 1 for a full score; shaped: the
scorer's value. The split is by the puzzle's text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic import Field

from hermes.core import Message
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import ShapedEnvConfig
from hermes.envs.builtin.solvable import SolvableEnv
from hermes.envs.rewards.result import RewardResult
from hermes.envs.tasks.reasoning import Puzzle, PuzzleGrader, puzzles
from hermes.envs.tasks.split import Split


class ReasoningGymConfig(ShapedEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=512, description="Longest answer, in tokens.")
    datasets: list[str] = Field(
        default=["basic_arithmetic", "chain_sum", "spell_backward"],
        min_length=1,
        description="Data sets of reasoning-gym, taken in turn.",
    )
    dataset_options: dict[str, dict[str, Any]] = Field(
        default={}, description="Data set → its own settings, such as max_digits."
    )


class ReasoningGymEnv(SolvableEnv):
    """The puzzles of reasoning-gym, graded by the package's own scorers."""

    name = "reasoning_gym"
    env_config_cls: ClassVar[Any] = ReasoningGymConfig
    config: ReasoningGymConfig

    async def setup(self) -> None:
        self._scorer = PuzzleGrader()
        await super().setup()

    def generate(self, split: Split) -> Iterator[Puzzle]:
        streams = [
            puzzles(name, self.config.dataset_options.get(name, {}), split, self.seed_of(split))
            for name in self.config.datasets
        ]
        while streams:
            for stream in list(streams):
                puzzle = next(stream, None)
                if puzzle is None:
                    streams.remove(stream)
                else:
                    yield puzzle

    def format_prompt(self, item: Puzzle) -> str:
        return f"{item.question}\n\nGive the final answer between <answer> and </answer>."

    async def grade(self, item: Puzzle, result: AgentResult, ctx: ToolContext) -> RewardResult:
        shaped = self.config.reward_mode == "shaped"
        return await asyncio.to_thread(self._scorer.grade, item, result.final_response, shaped=shaped)

    def gold(self, item: Puzzle) -> Sequence[Message]:
        return [Message.assistant(f"<answer>{item.answer}</answer>")] if item.answer is not None else []

    async def close(self) -> None:
        self._scorer.close()
        await super().close()


if __name__ == "__main__":
    ReasoningGymEnv.cli()
