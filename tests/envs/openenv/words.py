"""An environment of ours: the policy says the word that a tool shows; the fourth task's grader fails."""

from __future__ import annotations

from typing import Any

from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.tools.base import Tool, Workbench, object_schema


class WordsEnv(HermesAgentBaseEnv):
    """The policy says the word that a tool shows."""

    name = "words"
    default_toolsets = ()

    async def setup(self) -> None:
        self.drawn = 0

    async def get_next_item(self) -> Any:
        self.drawn += 1
        return {"id": f"w{self.drawn}", "word": f"word{self.drawn}"}

    def format_prompt(self, item: Any) -> str:
        return f"Task {item['id']}: look, and say the word."

    def extra_tools(self, item: Any) -> list[Tool]:
        async def look(arguments: dict[str, Any], bench: Workbench) -> str:
            return str(item["word"])

        return [Tool("look", "words", "Shows the word.", object_schema(), look)]

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        if item["id"] == "w4":
            raise OSError("the grader's service is gone")
        return float(result.final_response == item["word"])
