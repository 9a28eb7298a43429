"""One session of an OpenEnv server: a WebSocket on which an episode is reset and stepped.

A server that cannot be reached, that dies, that gives no answer in time, or whose answer is not of the
protocol raises SandboxError: an infrastructure failure, never a score. A server without a free session is
waited for. An action that the environment refuses or fails on raises ToolError, for the policy to read.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.core import JSON, JSONObject, ToolErrorKind
from hermes.errors import ConfigError, MissingDependencyError, SandboxError, ToolError

_MAX_MESSAGE_BYTES = 100 << 20
_CONNECT_S = 10.0
_LONGEST_PAUSE_S = 2.0
_MAX_ERRORS = 5
UNIX = "unix://"
"""The prefix of the address of a server on a Unix socket; the path follows."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of an action."""

    data: JSONObject
    reward: float | None
    """None: the environment gives none for this step."""
    done: bool


@dataclass(frozen=True, slots=True)
class About:
    """A server's own description of its environment."""

    description: str
    actions: JSONObject
    """The schema of its actions."""


class NoFreeSessionError(SandboxError):
    """The server holds as many sessions as it can."""


def server_urls(url: str) -> tuple[str, str]:
    """(of its HTTP interface, of its WebSocket) of a server; ConfigError: it is no URL of one."""
    if url.startswith(UNIX):
        return "http://localhost", "ws://localhost/ws"
    scheme, separator, rest = url.strip().rstrip("/").removesuffix("/ws").partition("://")
    schemes = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
    if not separator or scheme not in schemes or not rest:
        raise ConfigError(f"'{url}' is no address of an OpenEnv server.", "Write ws://HOST:PORT.")
    web = schemes[scheme]
    return f"{web}://{rest}", f"{web.replace('http', 'ws')}://{rest}/ws"


async def read_about(url: str, patience_s: float) -> About:
    """ConfigError: within this time nothing there has answered as an OpenEnv server does."""
    import httpx2

    base, _ = server_urls(url)
    deadline_s = time.monotonic() + patience_s
    transport = httpx2.AsyncHTTPTransport(uds=url.removeprefix(UNIX)) if url.startswith(UNIX) else None
    async with httpx2.AsyncClient(timeout=_CONNECT_S, transport=transport) as client:
        while True:
            try:
                schema = (await client.get(f"{base}/schema")).raise_for_status().json()
                reply = await client.get(f"{base}/metadata")  # for which the server makes an environment
                metadata = reply.json() if reply.is_success else {}
                return About(str(metadata.get("description") or ""), dict(schema["action"]))
            except (httpx2.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
                if time.monotonic() > deadline_s:
                    raise ConfigError(
                        f"no OpenEnv server answers at {base}: {_reason(error)}", "Is it running?"
                    ) from error
            await asyncio.sleep(_LONGEST_PAUSE_S / 4)


async def open_episode(
    urls: Sequence[str], arguments: Mapping[str, JSON], *, answer_s: float, patience_s: float
) -> tuple[Session, Observation]:
    """A session on the first of these servers that has one free, and the episode's first observation."""
    loop = asyncio.get_running_loop()
    deadline_s, pause_s = loop.time() + patience_s, 0.05
    for url in itertools.cycle(urls):
        session = await Session.connect(url, answer_s)
        try:
            return session, await session.reset(arguments)
        except NoFreeSessionError:
            await session.close()
            if loop.time() > deadline_s:
                raise
        except BaseException:
            await session.close()
            raise
        if url == urls[-1]:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    raise AssertionError("there is a server")


class Session:
    """Its requests are answered one after the other, in the order in which they were made."""

    def __init__(self, url: str, connection: Any, answer_s: float) -> None:
        self.url = url
        self._connection = connection
        self._answer_s = answer_s
        self._turn = asyncio.Lock()
        self.hangs = False
        """Whether the server has not answered in time."""

    @classmethod
    async def connect(cls, url: str, answer_s: float) -> Session:
        try:
            client = importlib.import_module("websockets.asyncio.client")
        except ImportError as error:
            raise MissingDependencyError("websockets", "envs", "OpenEnv") from error
        _, address = server_urls(url)
        try:
            # Without pings: a step may keep the server's event loop busy; answers have a limit of their own.
            limits = {"open_timeout": _CONNECT_S, "max_size": _MAX_MESSAGE_BYTES, "ping_interval": None}
            if url.startswith(UNIX):
                connection = await client.unix_connect(url.removeprefix(UNIX), address, **limits)
            else:
                connection = await client.connect(address, **limits)
        except Exception as error:
            raise SandboxError(
                f"the OpenEnv server {url} cannot be reached: {_reason(error)}", "Is it running?"
            ) from error
        return cls(url, connection, answer_s)

    async def reset(self, arguments: Mapping[str, JSON]) -> Observation:
        """Begins an episode."""
        try:
            return self._observation(await self._request("reset", dict(arguments)))
        except ToolError as error:
            raise SandboxError(f"the OpenEnv server {self.url} cannot begin: {error.message}") from error

    async def step(self, action: JSONObject) -> Observation:
        """ToolError: the environment refuses the action (bad_arguments), or its code raised (crashed)."""
        return self._observation(await self._request("step", action))

    async def list_tools(self) -> list[JSONObject]:
        """The tools of an MCP environment: {name, description, input_schema}."""
        reply = await self._request("step", {"type": "list_tools"})
        tools = self._observation(reply).data.get("tools")
        if not isinstance(tools, list):
            raise SandboxError(f"the OpenEnv server {self.url} lists no tools: {_short(reply)}")
        return tools

    async def close(self) -> None:
        """Ends the session and its episode; the server may be gone."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._connection.send(json.dumps({"type": "close"}))
                await self._connection.close()
        except Exception:  # noqa: BLE001 - whatever is wrong with it, nothing is wanted of it any more
            self._connection.transport.abort()

    async def _request(self, kind: str, data: JSONObject) -> JSONObject:
        """The data of the reply."""
        async with self._turn:
            try:
                async with asyncio.timeout(self._answer_s):
                    reply = json.loads(await self._exchange({"type": kind, "data": data}))
            except TimeoutError as error:
                self.hangs = True
                raise SandboxError(
                    f"the OpenEnv server {self.url} gave no answer to '{kind}' for {self._answer_s:g} s"
                ) from error
            except (ValueError, RecursionError) as error:
                raise SandboxError(f"the OpenEnv server {self.url} sent what is no JSON: {error}") from error
            except Exception as error:
                raise SandboxError(
                    f"the OpenEnv server {self.url} was lost during '{kind}': {_reason(error)}"
                ) from error
        if not isinstance(reply, dict) or not isinstance(reply.get("data"), dict):
            raise SandboxError(f"the OpenEnv server {self.url} sent no message: {_short(reply)}")
        if reply.get("type") == "error":
            raise _error(self.url, reply["data"])
        return reply["data"]  # type: ignore[no-any-return]

    async def _exchange(self, message: JSONObject) -> str | bytes:
        """The reply; where the server has closed the connection already, the reason that it sent before."""
        try:
            await self._connection.send(json.dumps(message))
        except importlib.import_module("websockets.exceptions").ConnectionClosed:
            return await self._connection.recv()  # type: ignore[no-any-return]
        return await self._connection.recv()  # type: ignore[no-any-return]

    def _observation(self, data: JSONObject) -> Observation:
        seen, reward, done = data.get("observation"), data.get("reward"), data.get("done")
        if not isinstance(seen, dict) or not isinstance(reward, int | float | None):
            raise SandboxError(f"the OpenEnv server {self.url} sent no observation: {_short(data)}")
        return Observation(seen, None if reward is None else float(reward), bool(done))


def _error(url: str, data: JSONObject) -> SandboxError | ToolError:
    code, message = data.get("code"), str(data.get("message") or "it gives no reason")
    if code == "CAPACITY_REACHED":
        return NoFreeSessionError(f"the OpenEnv server {url} has no free session: {message}")
    if code == "VALIDATION_ERROR":
        errors = data.get("errors")
        problems = [_problem(entry) for entry in errors[:_MAX_ERRORS]] if isinstance(errors, list) else []
        return ToolError("; ".join(problems) or message, kind=ToolErrorKind.BAD_ARGUMENTS)
    if code == "EXECUTION_ERROR":
        return ToolError(message, kind=ToolErrorKind.CRASHED)
    return SandboxError(f"the OpenEnv server {url} failed ({code}): {message}")


def _problem(entry: Any) -> str:
    """One error of pydantic's: where, and what."""
    if not isinstance(entry, dict):
        return str(entry)
    where = ".".join(str(part) for part in entry.get("loc") or ())
    return f"{where}: {entry.get('msg')}" if where else str(entry.get("msg"))


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _short(value: JSON) -> str:
    return json.dumps(value)[:200]
