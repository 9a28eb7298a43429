"""A live connection to one MCP server, over its standard streams or over HTTP.

The SDK's connection must be closed by the task that opened it, while tools are called from many
tasks. So each server has its own task, which keeps the connection open until it is stopped; a
call from another task ends at the latest with the connection.

A server started by command is a program of the user: it runs on this machine, outside the sandbox, so its
command needs approval before it first runs. Its environment consists of what the SDK passes on (PATH, HOME,
SHELL, TERM, the user's name), LANG, and the variables configured for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from hermes.config.paths import logs_dir
from hermes.core import JSONObject
from hermes.disk.files import ensure_dir
from hermes.errors import ConfigError, MissingDependencyError, ToolError

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult
    from mcp_types import Tool as ServerTool

    from hermes.config.settings import McpServerSettings

T = TypeVar("T")

MAX_TOOLS = 500
_NO_OUTPUT = logging.NullHandler()
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def server_environment(name: str, server: McpServerSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The configured variables, with ${NAME} replaced from the environment, so that keys stay in .env."""

    def substitute(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise ConfigError(
                f"mcp_servers.{name}.env needs {match[1]}, which is not set.",
                f"hermes config set {match[1]} …",
            )
        return environ[match[1]]

    language = {"LANG": environ["LANG"]} if "LANG" in environ else {}
    return language | {key: _REFERENCE.sub(substitute, value) for key, value in server.env.items()}


class McpSession:
    """One server, connected between `open` and `close`."""

    def __init__(
        self,
        name: str,
        server: McpServerSettings,
        environ: Mapping[str, str],
        home: Path,
        redact: Callable[[str], str],
    ) -> None:
        """`redact` is applied to what the server logs, line by line, before it is written."""
        self.name = name
        self._redact = redact
        self.timeout_s = server.timeout_s
        self._server = server
        self._env = server_environment(name, server, environ)
        self._log_path = logs_dir(home) / f"mcp_{re.sub(r'[^A-Za-z0-9_-]', '_', name)}.log"
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> list[ServerTool]:
        """Connects and lists the server's tools; ToolError if it fails. Must be closed in both cases."""
        self._task = asyncio.create_task(self._keep_connection(), name=f"mcp-{self.name}")
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._until_closed(self._list_tools())
        except TimeoutError as error:
            raise self._failure(f"did not answer within {self.timeout_s:g} s") from error

    async def call(self, tool: str, arguments: JSONObject) -> CallToolResult:
        return await self._until_closed(self._ready.result().call_tool(tool, arguments))

    async def close(self) -> None:
        """Ends the connection, and the process of a server that was started by command."""
        self._stop.set()
        if self._task is None:
            return
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()  # retrieved, so that asyncio does not log it

    async def _keep_connection(self) -> None:
        async with self._connection() as client:
            self._ready.set_result(client)
            await self._stop.wait()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Client]:
        try:
            from mcp import Client, StdioServerParameters, stdio_client
        except ModuleNotFoundError as error:
            raise MissingDependencyError("mcp", "mcp", "Talking to MCP servers") from error

        # The SDK's log messages about bad output must not reach the terminal.
        logging.getLogger("mcp").addHandler(_NO_OUTPUT)
        if self._server.url:
            async with Client(self._server.url) as client:
                yield client
            return
        parameters = StdioServerParameters(
            command=self._server.command or "", args=list(self._server.args), env=self._env
        )
        with redacted_log(self._log_path, self._redact) as log:
            async with Client(stdio_client(parameters, errlog=log)) as client:
                yield client

    async def _list_tools(self) -> list[ServerTool]:
        client = await asyncio.shield(self._ready)
        tools: list[ServerTool] = []
        cursor: str | None = None
        while len(tools) <= MAX_TOOLS:
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                return tools
        raise self._failure(f"offers more than {MAX_TOOLS} tools")

    async def _until_closed(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, or a ToolError if it fails or the connection ends first."""
        assert self._task is not None
        call = asyncio.create_task(work)
        try:
            await asyncio.wait({call, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
        ended = call if call.done() else self._task
        error = None if ended.cancelled() else ended.exception()
        if error is None and ended is call and not call.cancelled():
            return call.result()
        if isinstance(error, ToolError | MissingDependencyError):
            raise error
        raise self._failure(_reason(error)) from error

    def _failure(self, reason: str) -> ToolError:
        hint = "" if self._server.url else f"Its messages are in {self._log_path}."
        return ToolError(f"the MCP server '{self.name}' {reason}.", hint)


def _reason(error: BaseException | None) -> str:
    while isinstance(error, BaseExceptionGroup):  # anyio wraps the exception once per nested task group
        error = error.exceptions[0]
    if error is None:
        return "has ended"
    if isinstance(error, FileNotFoundError):
        return f"cannot be started: there is no program '{error.filename}'"
    return f"failed: {type(error).__name__}: {error}"


MAX_BYTES = 20_000_000
_MAX_LINE_BYTES = 1_000_000


@contextmanager
def redacted_log(path: Path, redact: Callable[[str], str]) -> Iterator[TextIO]:
    """A stream for a child process whose lines are redacted and then written to `path`, mode 0600.

    A secret that is broken over several lines is not found. What exceeds MAX_BYTES is dropped, and so is what
    the child's own children write after the block has ended.
    """
    ensure_dir(path.parent)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(target, 0o600)
    source, sink = os.pipe()
    copier = threading.Thread(target=_copy, args=(source, target, redact), daemon=True, name="mcp-log")
    copier.start()
    try:
        with os.fdopen(sink, "w") as stream:
            yield stream
    finally:
        copier.join(timeout=2.0)  # a process that the server left behind may still hold the pipe


def _copy(source: int, target: int, redact: Callable[[str], str]) -> None:
    room = MAX_BYTES
    with os.fdopen(source, "rb") as lines, os.fdopen(target, "wb", buffering=0) as log:
        while line := lines.readline(_MAX_LINE_BYTES):
            data = redact(line.decode("utf-8", "replace")).encode("utf-8", "replace")[:room]
            room -= len(data)
            log.write(data)
