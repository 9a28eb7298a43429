"""Tools of MCP servers, offered to the model as `mcp_<server>_<tool>`.

The tools are known only after connecting, so this toolset has no fixed tools: the agent builder calls
`connect_mcp` once per rollout. A server that cannot be used does not affect the others; the reason is in
`bench.resources["mcp_failures"]`, by server name.

The user approves each MCP server: its exact command or address, and the hashes of its tools. A model follows
a tool's description, so a server that changes one after it was approved could control the agent. Each tool is
pinned by a hash of its name, description and schema; changed ones need approval again, and so do tools that
appear later. The server itself needs approval again if its command, a value of its variables or a file of its
command line inside the workspace changed: an agent writes files there. Pins are stored in
<home>/mcp_pins.json, mode 0600.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes.config.secrets import HIDDEN, looks_secret, url_password
from hermes.config.secrets import find as find_secrets
from hermes.core import JSONObject, canonical_json, content_hash
from hermes.disk.files import atomic_write, read_text, settings_lock
from hermes.errors import ConfigError, HermesError, ToolError
from hermes.safety.json_schema import schema_fault
from hermes.safety.redact import Redactor
from hermes.safety.text import clip, printable
from hermes.tools.base import Tool, ToolOutput, Workbench
from hermes.tools.images import data_url, decode_base64
from hermes.tools.mcp.session import McpSession

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock
    from mcp_types import Tool as ServerTool

    from hermes.config.settings import McpServerSettings


TOOLS: tuple[Tool, ...] = ()
FAILURES = "mcp_failures"
MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 4_000

_log = logging.getLogger(__name__)


async def connect_mcp(bench: Workbench) -> list[Tool]:
    """Connects every configured server and returns their tools; the connections close with the bench."""
    failures: dict[str, str] = {}
    bench.resources[FAILURES] = failures
    sessions: list[McpSession] = []
    new_servers: set[str] = set()
    # The user is asked one question at a time; the servers, which start slowly, start in parallel.
    for name in sorted(bench.settings.mcp_servers):
        try:
            if name not in read_pins(cast(Path, bench.resources["home"])):
                new_servers.add(name)
            sessions.append(await _confirm_server(name, bench))
        except HermesError as error:
            failures[name] = _explain(error)
    tool_lists = await asyncio.gather(*(_open(session, failures) for session in sessions))
    tools: dict[str, Tool] = {}
    for session, server_tools in zip(sessions, tool_lists, strict=True):
        try:
            await _confirm_tools(session.name, server_tools, bench, is_new=session.name in new_servers)
        except HermesError as error:
            failures[session.name] = _explain(error)
            await session.close()
            continue
        for tool in server_tools:
            _add_tool(session, tool, tools)
    for name, reason in failures.items():
        _log.warning("%s", printable(f"MCP server '{name}' is not used: {reason}"))
    return list(tools.values())


async def _confirm_server(name: str, bench: Workbench) -> McpSession:
    """A session, not yet open, for a server whose exact command or address is approved."""
    server = bench.settings.mcp_servers[name]
    home = cast(Path, bench.resources["home"])
    action = action_text(server)
    pin = read_pins(home).get(name)
    environ = cast("Mapping[str, str]", bench.resources["environ"])
    redact = Redactor(find_secrets(environ, bench.settings)).text
    session = McpSession(name, server, environ, home, redact)
    mark = fingerprint(server, cast("Path | None", bench.resources.get("workspace")))
    if pin is None or (pin.action, pin.fingerprint) != (action, mark):
        is_same = pin is not None and pin.action == action
        note = "\n(its variables or its files in the workspace changed since you agreed)" if is_same else ""
        await bench.approver.approve("mcp_server", action + note)
        write_pin(home, name, Pin(action, {} if pin is None else pin.tools, mark))
    bench.closers.append(session.close)
    return session


async def _open(session: McpSession, failures: dict[str, str]) -> list[ServerTool]:
    try:
        return await session.open()
    except HermesError as error:
        failures[session.name] = _explain(error)
        await session.close()
        return []


async def _confirm_tools(name: str, tools: list[ServerTool], bench: Workbench, *, is_new: bool) -> None:
    """Pins the tools of a server that was agreed to just now; changed and later ones need approval."""
    home = cast(Path, bench.resources["home"])
    pin = read_pins(home)[name]
    changed = unknown_tools(pin, tools)
    if changed and not is_new:
        try:
            await bench.approver.approve("mcp_tools", change_text(name, pin.action, changed))
        except ToolError as error:
            names = ", ".join(tool.name for tool in changed)
            raise ToolError(
                f"the MCP server '{name}' changed its tools since they were agreed to ({names}).",
                "Start 'hermes' and confirm the change, or remove the server from mcp_servers.",
                kind="refused",
            ) from error
    if changed:
        # Removed tools stay pinned, so that one cannot return with another definition.
        pinned = {**pin.tools, **{tool.name: tool_hash(tool) for tool in changed}}
        write_pin(home, name, replace(pin, tools=pinned))


def _add_tool(session: McpSession, tool: ServerTool, offered: dict[str, Tool]) -> None:
    """Adds the tool, unless its schema is invalid: providers would reject the whole request."""
    if reason := _schema_problem(tool.input_schema):
        _log.warning(
            "%s", printable(f"tool '{tool.name}' of MCP server '{session.name}' is left out: {reason}")
        )
        return

    async def handler(arguments: JSONObject, bench: Workbench) -> ToolOutput:
        return _output(await session.call(tool.name, arguments))

    name = tool_name(session.name, tool.name, offered)
    offered[name] = Tool(
        name=name,
        toolset="mcp",
        description=clip(tool.description or tool.name, MAX_DESCRIPTION_CHARS),
        parameters=tool.input_schema,
        handler=handler,
        timeout_s=session.timeout_s,
    )


def tool_name(server: str, tool: str, existing: Container[str] = ()) -> str:
    """A name that every provider accepts; a changed or duplicate name ends in a hash."""
    plain = f"mcp_{server}_{tool}"
    name = re.sub(r"[^A-Za-z0-9_-]", "_", plain)
    if name == plain and len(name) <= MAX_NAME_CHARS and name not in existing:
        return name
    suffix = "_" + content_hash(canonical_json([server, tool]))[:8]
    return name[: MAX_NAME_CHARS - len(suffix)] + suffix


def _schema_problem(schema: JSONObject) -> str | None:
    if schema.get("type") != "object":
        return "its schema is not that of an object"
    fault = schema_fault(schema)
    return None if fault is None else f"its schema is invalid ({fault})"


def _output(result: CallToolResult) -> ToolOutput:
    texts = [_text(block) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    images = tuple(_images(result.content))
    return ToolOutput("\n".join(texts), ok=not result.is_error, images=images)


def _images(blocks: Sequence[ContentBlock]) -> Iterator[str]:
    for block in blocks:
        if block.type == "image":
            with suppress(ToolError):  # not an image, or too large: the text names its type
                yield data_url(decode_base64(block.data))


def _text(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}: {block.mime_type}]"
        case "resource_link":
            return f"[resource: {block.uri}]"
        case "resource":
            text: str | None = getattr(block.resource, "text", None)
            return text if text is not None else f"[resource: {block.resource.uri}]"


def _explain(error: HermesError) -> str:
    return f"{error.message} {error.hint}".strip()


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
