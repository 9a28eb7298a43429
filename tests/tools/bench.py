"""A workbench on a real sandbox, and calls made at it the way the agent loop makes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from hermes.config.settings import SandboxSettings, Settings
from hermes.core import JSON, Message, ToolCall, ToolResult, new_id
from hermes.safety.approval import AllowAll, Approver
from hermes.sandbox import open_sandbox
from hermes.tools import registry
from hermes.tools.base import Tool, Workbench
from hermes.tools.execute import run_tool_call


@asynccontextmanager
async def open_bench(
    backend: str = "local", workspace: Path | None = None, approver: Approver | None = None
) -> AsyncIterator[Workbench]:
    settings = Settings(sandbox=SandboxSettings(backend=backend))
    sandbox = await open_sandbox(settings.sandbox, interactive=False, workspace=workspace)
    bench = Workbench(sandbox, settings, approver or AllowAll(), new_id())
    try:
        yield bench
    finally:
        await bench.close()
        await sandbox.close()


async def call(bench: Workbench, name: str, /, **arguments: JSON) -> tuple[Message, ToolResult]:
    """Runs a built-in tool through the whole path a model's call takes."""
    return await run_tool_call(
        ToolCall(f"call_{new_id()}", name, json.dumps(arguments)), {name: registry.get(name)}, bench
    )


async def text(bench: Workbench, name: str, /, **arguments: JSON) -> str:
    """The content of a call that must succeed."""
    message, result = await call(bench, name, **arguments)
    assert result.ok, message.content
    return message.content


async def error(bench: Workbench, name: str, /, **arguments: JSON) -> tuple[str, str]:
    """(kind, message) of a call that must fail without having produced an output of its own."""
    message, result = await call(bench, name, **arguments)
    assert not result.ok, message.content
    failure = json.loads(message.content)
    assert failure["kind"] == result.error_kind
    return failure["kind"], failure["error"]


async def raw_call(
    bench: Workbench,
    tools: list[Tool],
    name: str,
    arguments: str,
    call_id: str = "call_1",
    **call_fields: JSON,
) -> tuple[Message, ToolResult]:
    """Runs a call exactly as written, with the given tools on offer."""
    made = replace(ToolCall(call_id, name, arguments), **call_fields)
    return await run_tool_call(made, {tool.name: tool for tool in tools}, bench)
