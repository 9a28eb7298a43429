"""The user's approval of each MCP server: its exact command or address, and the hashes of its tools.

A model follows a tool's description, so a server that changes one after it was approved could control the
agent. Each tool is pinned by a hash of its name, description and schema; changed ones need approval again,
and so do tools that appear later. The server itself needs approval again if its command, a value of its
variables or a file of its command line inside the workspace changed: an agent writes files there. Pins are
stored in <home>/mcp_pins.json, mode 0600.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config.secrets import HIDDEN, looks_secret, url_password
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
    fingerprint: str = ""
    """The fingerprint of the rest of the configuration; see `fingerprint`."""


def action_text(server: McpServerSettings) -> str:
    """The exact command or address, and the variables; values that may be keys are hidden."""
    if server.url is not None:
        return server.url
    command = shlex.join([server.command or "", *server.args])
    values = [f"{name}={_visible_value(name, value)}" for name, value in sorted(server.env.items())]
    return f"{command}\nwith {' '.join(values)}" if values else command


def _visible_value(name: str, value: str) -> str:
    is_reference = re.fullmatch(r"\$\{\w+\}", value) is not None
    if not is_reference and (looks_secret(name) or url_password(value) is not None):
        return HIDDEN
    return shlex.quote(value)


def fingerprint(server: McpServerSettings, workspace: Path | None) -> str:
    """A hash of what the action's text does not show: the variables' values, and the content of the files
    inside the workspace that the command names; empty if there is neither."""
    words = (server.command or "", *server.args)
    files = {word: _file_hash(path) for word in words if (path := _file_inside(word, workspace)) is not None}
    if not server.env and not files:
        return ""
    return content_hash(canonical_json([dict(server.env), files]))


def _file_inside(word: str, workspace: Path | None) -> Path | None:
    """The file in the workspace that a word of a command line names."""
    if workspace is None or "\0" in word or len(word) > 4096:
        return None
    real = (workspace / word).resolve()
    return real if real.is_relative_to(workspace.resolve()) and real.is_file() else None


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        return {
            name: Pin(str(entry["action"]), dict(entry["tools"]), str(entry.get("fingerprint", "")))
            for name, entry in data.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is malformed ({type(error).__name__}: {error}).",
            "Move it away; every MCP server will then be confirmed anew.",
        ) from error


def write_pin(home: Path, name: str, pin: Pin) -> None:
    with settings_lock(home):
        pins = {**read_pins(home), name: pin}
        data = {
            key: {"action": value.action, "tools": dict(value.tools), "fingerprint": value.fingerprint}
            for key, value in pins.items()
        }
        atomic_write(home / PINS_FILE, json.dumps(data, indent=1, sort_keys=True) + "\n")
