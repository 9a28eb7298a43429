"""The engine's server process: model, address, state directory, event loop, signals, orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.engine.server.security import TOKEN_SCHEME
from hermes.errors import MissingDependencyError
from hermes.models.local.torch_threads import import_torch
from hermes.safety.access import listen, policy_for

if TYPE_CHECKING:
    from hermes.engine.checkpoints.store import CheckpointStore
    from hermes.engine.engine import Engine
    from hermes.engine.info import EngineOptions
    from hermes.engine.server.state import EngineServerState

_NEEDED = ("torch", "transformers", "safetensors", "starlette", "uvicorn", "httptools", "tinker")
_TICK_S = 1.0
_BACKLOG = 4096
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    engine: EngineOptions
    names: tuple[str, ...]
    """What clients may call the base model; the first is what it is called in answers."""
    state_dir: Path
    """Where checkpoints are kept."""
    host: str = "127.0.0.1"
    port: int = 8001
    """0: any free one."""
    token: str | None = field(default=None, repr=False)
    client_timeout_s: float = 300.0
    """Silence after which a client counts as gone and its adapters are freed."""
    parser: str = "hermes"
    """Form in which the model calls tools, in chat; one of hermes.models.parsers."""


def serve(options: ServerOptions, announce: Callable[[str], None]) -> None:
    """Serves until a signal ends it. `announce` is told the address once clients can connect and work.

    UsageError: an address that others can reach, without a token. HostError: the state directory cannot be
    used. HermesError: the address is taken, or the model cannot be loaded.
    """
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, "train,web", "the engine's server")
    policy_for(TOKEN_SCHEME, options.host, options.token)
    import_torch()
    from hermes.engine.checkpoints.store import CheckpointStore

    with (
        listen(options.host, options.port, _BACKLOG) as listener,
        contextlib.closing(CheckpointStore(options.state_dir)) as store,
        contextlib.closing(_loaded(options.engine)) as engine,
        asyncio.Runner(loop_factory=_loop_factory()) as runner,
    ):
        engine.start()
        runner.run(_run(options, engine, store, listener, announce))


def _loaded(options: EngineOptions) -> Engine:
    from hermes.engine.engine import Engine

    return Engine(options)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run(
    options: ServerOptions,
    engine: Engine,
    store: CheckpointStore,
    listener: socket.socket,
    announce: Callable[[str], None],
) -> None:
    import uvicorn

    from hermes.engine.server.app import build_app, routes
    from hermes.engine.server.openai.routes import openai_routes
    from hermes.engine.server.state import open_state

    class EngineServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # ours below: uvicorn's would end the process before the engine is closed

    state = open_state(engine, store, options.names, options.client_timeout_s)
    table = [*openai_routes(state, options.parser), *routes(state)]  # what is asked for most comes first
    config = uvicorn.Config(
        build_app(table, policy_for(TOKEN_SCHEME, options.host, options.token)),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=10,
    )
    server = EngineServer(config)

    def stop(number: int) -> None:
        state.calls.close()
        server.handle_exit(number, None)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    clock = asyncio.create_task(_keep_time(state))
    host = f"[{options.host}]" if ":" in options.host else options.host
    announce(f"http://{host}:{listener.getsockname()[1]}")
    try:
        await server.serve(sockets=[listener])
    finally:
        clock.cancel()


async def _keep_time(state: EngineServerState) -> None:
    """What must happen although nobody asks: silence noticed, old results and checkpoints gone, room made."""
    while True:
        await asyncio.sleep(_TICK_S)
        state.sessions.expire()
        state.calls.forget(time.monotonic())
        try:
            now_s = time.time()
            for checkpoint in state.store.expired(now_s):
                await state.policies.detach(checkpoint)
                await asyncio.to_thread(state.store.delete, checkpoint, expired_by_s=now_s)
            await state.policies.trim()
        except Exception:
            _logger.exception("housekeeping failed and will be tried again")
