"""Who may run what: a policy decides from rules, a person decides where no rule does.

The policy looks at the parsed command, never at text that came from a model or a tool's output.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Verdict(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    REFUSE = "refuse"


class Approver(Protocol):
    """Asked before a tool does something that could matter."""

    async def approve(self, kind: str, action: str) -> None:
        """Returns if the action may go ahead; raises ToolError(kind='refused') if not.

        `kind` is what sort of action it is ('command', 'mcp_server'), `action` its exact text.
        """
        ...
