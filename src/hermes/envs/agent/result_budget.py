"""An environment's budget for tool results: per tool, and for all results of one turn together.

A result over budget is saved to a file in the sandbox; the model gets its beginning and the path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hermes.core import JSONObject, content_hash
from hermes.tools.base import Tool, ToolOutput, Workbench
from hermes.tools.result_budget import storable
from hermes.tools.scratch import write_scratch

if TYPE_CHECKING:
    from hermes.envs.agent.config import HermesAgentEnvConfig

_UNBOUNDED = 1 << 40


@dataclass
class ResultBudget:
    """The budget of one rollout."""

    config: HermesAgentEnvConfig
    turn: Callable[[], int] = field(default=lambda: 0)
    """Identifies the current turn; set when the rollout's loop exists."""
    _spent: tuple[int, int] = (0, 0)
    """The turn, and the characters shown in it so far."""

    def adapt(self, tool: Tool) -> Tool:
        """The tool with this budget instead of its own."""
        limit = (self.config.tool_result_overrides or {}).get(
            tool.name, self.config.default_result_size_chars
        )

        async def handler(arguments: JSONObject, bench: Workbench) -> ToolOutput:
            output = await tool.handler(arguments, bench)
            return await self._fit_to_budget(
                ToolOutput(output) if isinstance(output, str) else output, limit, bench
            )

        return replace(tool, handler=handler, max_result_chars=_UNBOUNDED)

    async def _fit_to_budget(self, output: ToolOutput, limit: int, bench: Workbench) -> ToolOutput:
        turn, spent = self._spent
        if turn != self.turn():
            turn, spent = self.turn(), 0
        size = len(output.content)
        if size <= min(limit, self.config.turn_budget_chars - spent):
            self._spent = turn, spent + size
            return output
        preview = await self._save(output, bench)
        self._spent = turn, spent + len(preview)
        return replace(output, content=preview)

    async def _save(self, output: ToolOutput, bench: Workbench) -> str:
        full = storable(output.full if output.full is not None else output.content)
        name = f"results/{content_hash(full)[:16]}.txt"
        try:
            where = f'path="{await write_scratch(bench, name, full.encode("utf-8"))}"'
        except OSError as error:  # the model still gets the preview, and the error
            where = f'not_saved="{error.strerror or type(error).__name__}"'
        preview = full[: self.config.preview_size_chars]
        return f'<persisted-output {where} chars="{len(full)}">\n{preview}\n</persisted-output>'
