"""The user's approval of each MCP server: its exact command or address, and the hashes of its tools.

A model follows a tool's description, so a server that changes one after it was approved could control the
agent. Each tool is pinned by a hash of its name, description and schema; new or changed tools need approval
again. Pins are stored in <home>/mcp_pins.json, mode 0600.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import canonical_json, content_hash
from hermes.disk.files import atomic_write, read_text, settings_lock
from hermes.errors import ConfigError

if TYPE_CHECKING:
    from mcp_types import Tool as ServerTool

    from hermes.config.settings import McpServerSettings

PINS_FILE = "mcp_pins.json"


@dataclass(frozen=True, slots=True)
class Pin:
    action: str
    """The approved command line or address."""
    tools: Mapping[str, str]
    """Tool name → hash."""


def action_text(server: McpServerSettings) -> str:
    """The exact command or address; configured variables by name only, since they may be keys."""
    if server.url is not None:
        return server.url
    command = shlex.join([server.command or "", *server.args])
    names = ", ".join(sorted(server.env))
    return f"{command} (with {names} set)" if names else command


def tool_hash(tool: ServerTool) -> str:
    return content_hash(canonical_json([tool.name, tool.description, tool.input_schema]))


def unknown_tools(pin: Pin, tools: Sequence[ServerTool]) -> list[ServerTool]:
    """The tools that are new or have changed."""
    return [tool for tool in tools if pin.tools.get(tool.name) != tool_hash(tool)]


def change_text(name: str, action: str, tools: Sequence[ServerTool]) -> str:
    descriptions = [
        f"{tool.name}: {tool.description or ''}\n{canonical_json(tool.input_schema)}" for tool in tools
    ]
    return f"use changed tools of the MCP server '{name}' ({action})\n" + "\n".join(descriptions)


def read_pins(home: Path) -> dict[str, Pin]:
    path = home / PINS_FILE
    text = read_text(path)
    if text is None:
        return {}
    try:
        data = json.loads(text)
        return {name: Pin(str(entry["action"]), dict(entry["tools"])) for name, entry in data.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is malformed ({type(error).__name__}: {error}).",
            "Move it away; every MCP server will then be confirmed anew.",
        ) from error


def write_pin(home: Path, name: str, pin: Pin) -> None:
    with settings_lock(home):
        pins = {**read_pins(home), name: pin}
        data = {key: {"action": value.action, "tools": dict(value.tools)} for key, value in pins.items()}
        atomic_write(home / PINS_FILE, json.dumps(data, indent=1, sort_keys=True) + "\n")
