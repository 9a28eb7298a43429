"""Tools of MCP servers, offered to the model as `mcp_<server>_<tool>`.

The tools are known only after connecting, so this toolset has no fixed tools: the agent builder calls
`connect_mcp` once per rollout. A server that cannot be used does not affect the others; the reason is in
`bench.resources["mcp_failures"]`, by server name.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes.config.secrets import find as find_secrets
from hermes.core import JSONObject, canonical_json, content_hash
from hermes.errors import HermesError, ToolError
from hermes.safety.json_schema import schema_fault
from hermes.safety.redact import Redactor
from hermes.safety.text import clip, printable
from hermes.tools.base import Tool, ToolOutput, Workbench
from hermes.tools.images import data_url, decode_base64
from hermes.tools.mcp.pins import (
    Pin,
    action_text,
    change_text,
    fingerprint,
    read_pins,
    tool_hash,
    unknown_tools,
    write_pin,
)
from hermes.tools.mcp.session import McpSession

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock
    from mcp_types import Tool as ServerTool

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
