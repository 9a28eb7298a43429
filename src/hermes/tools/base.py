"""The definition of a tool, and the workbench that a rollout's tools share.

A handler gets validated arguments and a workbench, and returns text (or a `ToolOutput`). It raises
`ToolError` for a failure that the model should read. `tools.execute` handles time-outs, result budgets,
argument validation and the result's record, in the same way for every tool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hermes.core import JSONObject

if TYPE_CHECKING:  # for annotations only: importing a tool must stay cheap
    from hermes.config.settings import Settings
    from hermes.safety.approval import Approver
    from hermes.sandbox.base import BackgroundProcess, Sandbox


@dataclass(frozen=True, slots=True)
class ToolOutput:
    content: str
    ok: bool = True
    exit_code: int | None = None
    images: tuple[str, ...] = ()
    kind: str = "failed"
    """The kind of failure if not ok: one of core.step.ToolErrorKind's values."""
    full: str | None = None
    """The text to save and preview if the content is over budget; None: the content itself."""


class Delegate(Protocol):
    """Runs a sub-agent on a task and returns its answer; bound by the agent loop."""

    async def __call__(self, task: str, toolsets: tuple[str, ...] | None) -> ToolOutput: ...


@dataclass
class Workbench:
    """The state that the tools of one rollout share. Mutable, and closed with the rollout."""

    sandbox: Sandbox
    settings: Settings
    approver: Approver
    trajectory_id: str
    ask_user: Callable[[str, tuple[str, ...]], Awaitable[str]] | None = None
    """Asks the user a question (with optional choices); None without a user."""
    notify_user: Callable[[str], None] | None = None
    """Shows a notice to the user, in full; None without a user."""
    step_index: int | None = None
    """The model step whose calls are being run."""
    delegate: Delegate | None = None
    processes: dict[str, BackgroundProcess] = field(default_factory=dict)
    todos: list[JSONObject] = field(default_factory=list)
    resources: dict[str, object] = field(default_factory=dict)
    """Objects that a tool opens lazily and keeps between calls (a browser, an MCP session), by key."""
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Run in reverse order when the rollout ends."""

    async def close(self) -> None:
        while self.closers:
            await self.closers.pop()()


ENDED = "ended"
"""The resource by which a tool ends the conversation: an environment's episode is over, say."""

Handler = Callable[[JSONObject, Workbench], Awaitable["ToolOutput | str"]]


def object_schema(*required: str, **properties: JSONObject) -> JSONObject:
    """The JSON schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def always_available(settings: Settings, environ: Mapping[str, str]) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    toolset: str
    description: str
    parameters: JSONObject
    """JSON schema of the arguments, an object."""
    handler: Handler
    unavailable: Callable[[Settings, Mapping[str, str]], str | None] = always_available
    """None if the tool can be used, else one line: the reason and the fix.

    Its arguments are the settings and the merged environment (.env and process), which contains the API
    keys."""
    timeout_s: float = 120.0
    """Hard limit; a tool with a time-out argument must stay below it."""
    max_result_chars: int = 100_000
    stateless: bool = False
    """Whether a call leaves nothing behind that a later one could need: no file, no process, no list. Then
    its recorded result stands for it when an interrupted rollout is continued."""

    @property
    def schema(self) -> JSONObject:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}
