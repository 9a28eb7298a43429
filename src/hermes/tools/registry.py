"""The registry of tools: which tools exist, in which toolset, and whether each can be used here.

Built-in tools come from the modules named in `tools.toolsets`, imported at the first request. A higher
package adds tools with `register`; a third party adds whole toolsets through the entry point group
`hermes.tools`, whose entries name a `Tool` or a sequence of them and are loaded only when a name outside the
built-in ones is requested. Names are unique: a second tool with a name is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hermes.core.names import did_you_mean, nearest
from hermes.errors import ConfigError, UsageError
from hermes.tools.base import Tool
from hermes.tools.toolsets import TOOLSETS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from hermes.config.settings import Settings

ENTRY_POINTS = "hermes.tools"

_registered: dict[str, Tool] = {}


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A requested tool that cannot be used here."""

    tool: Tool
    reason: str
    """One line: what is missing, and the fix."""


def register(tool: Tool) -> Callable[[], None]:
    """Adds a tool for the rest of the process; call the returned function to remove it."""
    if tool.name in _registered or tool.name in _builtin():
        raise ConfigError(f"there is already a tool named '{tool.name}'", "give the new tool another name")
    _registered[tool.name] = tool

    def unregister() -> None:
        _registered.pop(tool.name, None)

    return unregister


def all_tools() -> dict[str, Tool]:
    """Every tool by name: built-in, registered, and from plug-ins."""
    plugins = _plugin_tools()
    for name in plugins:
        if name in _registered:
            raise ConfigError(f"a plug-in and Hermes both have a tool named '{name}'", "remove the plug-in")
    return {**_builtin(), **_registered, **plugins}


def toolset_names() -> tuple[str, ...]:
    """Built-in toolsets first, in their fixed order; then the added ones by name."""
    added = {tool.toolset for tool in all_tools().values()} - set(TOOLSETS)
    return (*TOOLSETS, *sorted(added))


def check_toolset(name: str) -> str:
    """The name itself; UsageError if no such toolset exists."""
    loaded = {*TOOLSETS, *(tool.toolset for tool in _registered.values())}
    if name not in loaded and name not in (names := toolset_names()):
        raise unknown("toolset", name, names)
    return name


def get(name: str) -> Tool:
    """The tool of that name; UsageError if there is none."""
    tools = {**_builtin(), **_registered}
    if name not in tools:
        tools = all_tools()
    if name not in tools:
        raise unknown("tool", name, tools)
    return tools[name]


def tools_in(toolset: str) -> tuple[Tool, ...]:
    """The tools of one toolset. Empty for one whose tools are known only after connecting (mcp)."""
    check_toolset(toolset)
    candidates = _builtin_tools(toolset) if toolset in TOOLSETS else tuple(_plugin_tools().values())
    return tuple(tool for tool in (*candidates, *_registered.values()) if tool.toolset == toolset)


def select(
    toolsets: Sequence[str],
    settings: Settings,
    environ: Mapping[str, str],
    *,
    require_available: bool,
) -> tuple[list[Tool], list[Unavailable]]:
    """The usable tools of the named toolsets, in order, and those that were left out.

    With `require_available`, a toolset without a usable tool is a UsageError; without, it is only reported,
    which is right if the toolsets are a default and not an explicit request.
    """
    names = list(dict.fromkeys(toolsets))
    if require_available and (reasons := unusable_toolsets(names, settings, environ)):
        name, reason = next(iter(reasons.items()))
        raise UsageError(f"the toolset '{name}' cannot be used here", reason)
    usable: list[Tool] = []
    left_out: list[Unavailable] = []
    for tool in (tool for name in names for tool in tools_in(name)):
        problem = tool.unavailable(settings, environ)
        if problem is None:
            usable.append(tool)
        else:
            left_out.append(Unavailable(tool, problem))
    return usable, left_out


def unusable_toolsets(
    toolsets: Iterable[str], settings: Settings, environ: Mapping[str, str]
) -> dict[str, str]:
    """The toolsets without a usable tool, with the reason."""
    reasons: dict[str, str] = {}
    for name in toolsets:
        problems = [tool.unavailable(settings, environ) for tool in tools_in(name)]
        if any(problem is None for problem in problems):
            continue
        if (reason := problems[0] if problems else connection_problem(name, settings)) is not None:
            reasons[name] = reason
    return reasons


def connection_problem(toolset: str, settings: Settings) -> str | None:
    """Why a toolset whose tools are known only after connecting would have none; None if it can connect."""
    if toolset == "mcp" and not settings.mcp_servers:
        return "no MCP server is configured; hermes config set mcp_servers.NAME.command PROGRAM"
    if toolset == "mcp" and find_spec("mcp") is None:
        return "the package 'mcp' is not installed; pip install 'hermes-research[mcp]'"
    return None


def unknown(kind: str, name: str, candidates: Iterable[str]) -> UsageError:
    """The error for an unknown name, with the closest candidates."""
    names = list(candidates)
    hint = did_you_mean(nearest(name, names), f"one of: {', '.join(names)}")
    return UsageError(f"no such {kind}: '{name}'", hint)


@cache
def _builtin() -> Mapping[str, Tool]:
    tools = [tool for toolset in TOOLSETS for tool in _builtin_tools(toolset)]
    by_name = {tool.name: tool for tool in tools}
    assert len(by_name) == len(tools), "two built-in tools have the same name"
    return by_name


@cache
def _builtin_tools(toolset: str) -> tuple[Tool, ...]:
    modules = (import_module(f"hermes.tools.{module}") for module in TOOLSETS[toolset].modules)
    return tuple(tool for module in modules for tool in module.TOOLS)


@cache
def _plugin_tools() -> Mapping[str, Tool]:
    from importlib.metadata import entry_points

    tools: dict[str, Tool] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        for tool in _load(entry):
            if tool.toolset in TOOLSETS:
                raise _plugin_error(entry, f"it adds to the built-in toolset '{tool.toolset}'")
            if tool.name in tools or tool.name in _builtin():
                raise _plugin_error(entry, f"there is already a tool named '{tool.name}'")
            tools[tool.name] = tool
    return tools


def _load(entry: EntryPoint) -> tuple[Tool, ...]:
    try:
        loaded = entry.load()
    except Exception as error:  # a plug-in may raise anything
        raise _plugin_error(entry, f"{type(error).__name__}: {error}") from error
    tools = (loaded,) if isinstance(loaded, Tool) else tuple(loaded) if isinstance(loaded, Sequence) else ()
    if not tools or not all(isinstance(tool, Tool) for tool in tools):
        raise _plugin_error(entry, f"'{entry.value}' is neither a Tool nor a sequence of Tools")
    return tools


def _plugin_error(entry: EntryPoint, reason: str) -> ConfigError:
    package = entry.dist.name if entry.dist else entry.value
    return ConfigError(
        f"the tools plug-in '{entry.name}' of {package} cannot be used: {reason}",
        f"pip install --upgrade {package}, or pip uninstall {package}",
    )
