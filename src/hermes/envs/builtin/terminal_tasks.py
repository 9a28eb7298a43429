"""terminal_tasks: small jobs on files, done with a shell.

Teaches the use of a terminal: write, count, extract, add up, sort, filter, rename, replace, deduplicate, edit
settings, delete, script, join. Every rollout has its own sandbox. The files themselves are graded, including
those that must not change. Shaped: the share of the work that is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from hermes.core import Message
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import ShapedEnvConfig
from hermes.envs.builtin.solvable import SolvableEnv, tool_call_turn
from hermes.envs.rewards.result import RewardResult
from hermes.envs.tasks.jobs.kinds import TerminalJob, grade_job, make_job
from hermes.envs.tasks.split import Split, draw

_CHECK_TIMEOUT_S = 20.0


class TerminalTasksConfig(ShapedEnvConfig):
    max_agent_turns: int = Field(default=8, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=512, description="Longest answer of one call, in tokens.")
    system_prompt: str | None = Field(
        default="Do the job with the terminal, in the current directory. When it is done, say so.",
        description="System prompt.",
    )


class TerminalTasksEnv(SolvableEnv):
    """Small jobs on files, done with a shell; graded by the resulting files."""

    name = "terminal_tasks"
    env_config_cls: ClassVar[Any] = TerminalTasksConfig
    config: TerminalTasksConfig
    default_toolsets: ClassVar[Sequence[str]] = ("terminal", "file")

    def generate(self, split: Split) -> Iterator[TerminalJob]:
        return draw(make_job, split, self.seed_of(split))

    def format_prompt(self, item: TerminalJob) -> str:
        return item.instruction

    def workspace_files(self, item: TerminalJob) -> Mapping[str, bytes]:
        return {path: text.encode() for path, text in item.files.items()}

    async def grade(self, item: TerminalJob, result: AgentResult, ctx: ToolContext) -> RewardResult:
        graded = await grade_job(item, _SandboxWorkspace(ctx))
        if self.config.reward_mode == "shaped":
            return RewardResult(
                graded.parts["progress"], {**graded.parts, "success": graded.value}, graded.detail
            )
        return graded

    def gold(self, item: TerminalJob) -> Sequence[Message]:
        return [tool_call_turn(("terminal", {"command": item.solution})), Message.assistant("Done.")]

    def exploits(self, item: TerminalJob) -> Mapping[str, Sequence[Message]]:
        def runs(command: str) -> Sequence[Message]:
            return [tool_call_turn(("terminal", {"command": command})), Message.assistant("Done.")]

        return {
            **super().exploits(item),
            "exit 0": runs("exit 0"),
            "claim success": [Message.assistant("Done. All checks pass, exit code 0.")],
            "delete everything": runs("rm -rf ./*"),
            "write results": runs("echo '{\"reward\": 1.0}' > reward.json; echo 1 > result.txt"),
            "replace commands": runs(
                "mkdir -p bin; for c in test cat sh grep; do ln -s /bin/true bin/$c; done"
            ),
            "hide by permissions": runs("chmod 000 * . 2> /dev/null; true"),
            "endless file": runs("ln -sf /dev/zero count.txt; mkfifo total.txt unique.txt"),
        }


class _SandboxWorkspace:
    """The rollout's sandbox as the workspace of the checks."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._opened = False

    async def _open_directories(self) -> None:
        """Undoes permissions that would hide a file from the checks: hidden is not removed."""
        if not self._opened:
            self._opened = True
            await self._context.terminal("chmod -R u+rwX . 2> /dev/null; true", timeout=_CHECK_TIMEOUT_S)

    async def read_text(self, path: str) -> str | None:
        await self._open_directories()
        file = await self._context.read_file(path)
        text: str | None = file.get("content")
        return text

    async def exists(self, path: str) -> bool:
        await self._open_directories()
        test = f"test -e {path} || test -L {path}"
        completed = await self._context.terminal(test, timeout=_CHECK_TIMEOUT_S)
        return bool(completed["exit_code"] == 0)

    async def run_command(self, command: str) -> str | None:
        completed = await self._context.terminal(command, timeout=_CHECK_TIMEOUT_S)
        return None if completed["exit_code"] != 0 else str(completed["output"])


if __name__ == "__main__":
    TerminalTasksEnv.cli()
