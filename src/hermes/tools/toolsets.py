"""The built-in toolsets: names under which tools are offered together.

Only names, one-line descriptions and module names live here; nothing is imported. Toolsets that are
registered at run time or come from a plug-in are known to `tools.registry`, not to this table.
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
            Toolset("terminal", "Shell commands, in the foreground and the background.", ("terminal",)),
            Toolset("file", "Read, write, change and search files.", ("files", "patch", "search_files")),
            Toolset("web", "Search the web and read pages.", ("web",)),
            Toolset("code_execution", "Run Python.", ("code",)),
            Toolset("skills", "Find and follow written procedures.", ("skills_tools",)),
            Toolset("todo", "Keep a list of what is to be done.", ("todo",)),
            Toolset("session_search", "Search what earlier runs recorded.", ("session_search",)),
            Toolset("memory", "Remember facts across sessions, in chat.", ("memory",)),
            Toolset("datasets", "Look at datasets of the hub and in files.", ("datasets.inspect",)),
            Toolset("clarify", "Ask the user.", ("clarify",)),
            Toolset("delegation", "Give a task to a sub-agent.", ("delegation",)),
            Toolset("vision", "Look at images.", ("vision",)),
            Toolset("image_gen", "Draw images.", ("image_gen",)),
            Toolset("browser", "Drive a web browser.", ("browser",)),
            Toolset("mcp", "Tools of the configured MCP servers.", ("mcp",)),
            Toolset("math", "Exact arithmetic.", ("calculator",)),
        )
    }
)
