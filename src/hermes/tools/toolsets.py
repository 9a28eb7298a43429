"""The built-in toolsets: names under which tools are offered together.

This table has only names, one-line descriptions and module names; nothing is imported. Toolsets that are
registered at run time or come from a plug-in are in `tools.registry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Toolset:
    name: str
    description: str
    modules: tuple[str, ...]
    """Modules under hermes.tools whose TOOLS make up the set."""


TOOLSETS: Mapping[str, Toolset] = MappingProxyType(
    {
        toolset.name: toolset
        for toolset in (
            Toolset(
                "terminal", "Shell commands, in the foreground and the background.", ("builtin.terminal",)
            ),
            Toolset(
                "file",
                "Read, write, change and search files.",
                ("files.read_write", "files.patch", "files.search"),
            ),
            Toolset("web", "Search the web and read pages.", ("web.tools",)),
            Toolset("code_execution", "Run Python.", ("builtin.code",)),
            Toolset("skills", "Find and follow written procedures.", ("builtin.skills",)),
            Toolset("todo", "Keep a list of what is to be done.", ("builtin.todo",)),
            Toolset("session_search", "Search what earlier runs recorded.", ("builtin.session_search",)),
            Toolset("memory", "Remember facts across sessions, in chat.", ("builtin.memory",)),
            Toolset("datasets", "Look at datasets of the hub and in files.", ("datasets.inspect",)),
            Toolset("clarify", "Ask the user.", ("builtin.clarify",)),
            Toolset("delegation", "Give a task to a sub-agent.", ("builtin.delegation",)),
            Toolset("vision", "Look at images.", ("builtin.vision",)),
            Toolset("image_gen", "Draw images.", ("builtin.image_gen",)),
            Toolset("browser", "Drive a web browser.", ("browser.tools",)),
            Toolset("mcp", "Tools of the configured MCP servers.", ("mcp.tools",)),
            Toolset("math", "Exact arithmetic.", ("builtin.calculator",)),
        )
    }
)
