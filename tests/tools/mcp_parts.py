"""A person who is asked about MCP servers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hermes.errors import ToolError

ENVIRON = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


@dataclass
class Person:
    """Answers by kind of action, and remembers what was shown."""

    refuses: tuple[str, ...] = ()
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def approve(self, kind: str, action: str) -> None:
        self.asked.append((kind, action))
        if kind in self.refuses:
            raise ToolError(f"refused: {action}", kind="refused")
