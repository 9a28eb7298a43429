"""One address for environments, in front of the servers of a fleet; the engine trains meanwhile.

Environments request the model `policy` there as they would at the engine, with the fleet's `server_type`. Ids
and logprobs are the servers' own. Every answer has the version of the weights that sampled it, so staleness
is known, and the trainer measures and corrects what differs between a server and the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSONObject
from hermes.engine.server.security import TOKEN_SCHEME
from hermes.errors import HermesError, ProviderError, UsageError
from hermes.rl.fleet.dialect import FleetDialect
from hermes.rl.fleet.members import PolicyVersion, SamplingFleet, VersionSource
from hermes.serving import Listener, listen, run_event_loop, serve_until_signal

if TYPE_CHECKING:
    import httpx2
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

_MOST_BYTES = 64 << 20
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    engine_url: str
    servers: tuple[str, ...]
    dialect: FleetDialect
    folder: Path
    """Where adapters are written; the servers read it under the same path."""
    host: str = "127.0.0.1"
    port: int = 8003
    token: str | None = field(default=None, repr=False)
    """Required of environments."""
    server_key: str | None = field(default=None, repr=False)
    """The API key of the servers."""
    poll_s: float = 0.5
    """How often the engine is asked for newer weights."""


def serve(options: FleetOptions, announce: Callable[[str], None]) -> None:
    """Until SIGINT or SIGTERM.

    HermesError: engine or servers cannot be used, the address is in use, or no server can load the weights.
    """
    with listen(options.host, options.port, TOKEN_SCHEME, options.token) as listener:
        run_event_loop(_run(options, listener, announce))


async def _run(options: FleetOptions, listener: Listener, announce: Callable[[str], None]) -> None:
    async with _client(options.server_key) as http:
        fleet = SamplingFleet(http, options.dialect)
        await fleet.join(options.servers)
        source = VersionSource(options.engine_url, options.folder.absolute())
        first = await asyncio.to_thread(source.newest, None)
        if first is not None:
            await fleet.publish(first)
            if fleet.current is None:
                raise UsageError(
                    f"no server can load {first.key} from {options.folder}; the reasons are above",
                    f"name a --folder that the servers read too; {options.dialect.start_hint}",
                )
        app = build_app(fleet, options.dialect)
        tasks = [
            asyncio.create_task(serve_until_signal(app, listener, announce=announce)),
            asyncio.create_task(_follow(fleet, source, options.poll_s)),
        ]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()


async def join_servers(servers: Sequence[str], dialect: FleetDialect, server_key: str | None) -> None:
    """UsageError: a server does not answer, cannot load adapters, or returns no logprobs."""
    async with _client(server_key) as http:
        await SamplingFleet(http, dialect).join(servers)


def _client(server_key: str | None) -> httpx2.AsyncClient:
    import httpx2

    headers = {"Authorization": f"Bearer {server_key}"} if server_key else {}
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60.0, limits=limits)


async def _follow(fleet: SamplingFleet, source: VersionSource, poll_s: float) -> None:
    """Publishes newer weights, and the current ones again on a server that has lost them.

    UsageError: no server can load the newest.
    """
    fetched: set[PolicyVersion] = set()
    while True:
        version = await _newest(fleet, source)
        if version is not None:
            fetched.add(version)
            await fleet.publish(version)
            for old_version in fetched - fleet.in_use() - {version}:
                fetched.remove(old_version)
                source.forget(old_version)
        await asyncio.sleep(poll_s)


async def _newest(fleet: SamplingFleet, source: VersionSource) -> PolicyVersion | None:
    """None: it cannot be fetched now, or the engine does not answer."""
    try:
        return await asyncio.to_thread(source.newest, fleet.current)
    except HermesError as error:
        _logger.warning("%s", error.message)
        return None


def build_app(fleet: SamplingFleet, dialect: FleetDialect) -> ASGIApp:
    from starlette.responses import JSONResponse

    from hermes.engine.server.app import build_app as build
    from hermes.serving.json_body import read_json_object
    from hermes.serving.openapi import Operation

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"}, 503 if fleet.current is None else 200)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_card(fleet)]})

    async def sample(request: Request) -> Response:
        path = request.url.path
        try:
            body = await read_json_object(request, _MOST_BYTES)
            if body.get("stream"):
                raise UsageError("a fleet does not stream", "leave out stream")
            return JSONResponse(await fleet.sample(path, body))
        except ProviderError as error:
            return JSONResponse({"error": {"message": error.message}}, error.status or 502)
        except UsageError as error:
            return JSONResponse({"error": {"message": f"{error.message}; {error.hint}"}}, 400)

    operations = [
        Operation(
            "GET", "/health", "Whether a version of the policy can be sampled.", health, statuses=(503,)
        ),
        Operation("GET", "/v1/models", "The policy, its version and the servers.", models),
        *(
            Operation("POST", path, "Samples on the server with the fewest requests.", sample)
            for path in dialect.sample_paths
        ),
    ]
    return build(operations)


def _card(fleet: SamplingFleet) -> JSONObject:
    version = fleet.current.key if fleet.current is not None else None
    servers: list[JSONObject] = [
        {"url": member.url, "running": member.load, "ready": fleet.current in member.versions}
        for member in fleet.members
    ]
    return {
        "id": "policy",
        "object": "model",
        "owned_by": "hermes",
        "metadata": {"weight_version": version, "servers": servers},
    }
