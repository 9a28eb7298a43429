"""The engine's server process: model, address, state directory, housekeeping, orderly shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.engine.server.security import TOKEN_SCHEME
from hermes.errors import MissingDependencyError
from hermes.models.local.torch_threads import import_torch
from hermes.safety.access import policy_for
from hermes.serving import HttpSettings, Listener, listen, run_event_loop, serve_until_signal

if TYPE_CHECKING:
    from hermes.engine.checkpoints.store import CheckpointStore
    from hermes.engine.info import EngineInterface, EngineOptions
    from hermes.engine.server.options import EngineServeOptions
    from hermes.engine.server.state import EngineServerState

_REQUIRED = ("torch", "transformers", "safetensors", "starlette", "uvicorn", "httptools", "tinker")
_HOUSEKEEPING_S = 1.0
_BACKLOG = 4096
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of `hermes engine serve`, resolved on this machine."""

    engine: EngineOptions
    names: tuple[str, ...]
    """Names of the base model that requests may use; the first is the one in responses."""
    state_dir: Path | None
    """Where checkpoints are stored; None: in a temporary folder."""
    policies: tuple[tuple[str, Path], ...]
    """Model name and adapter folder of each policy to serve; where there are any, nobody samples the base."""
    replicas: int | None
    """Worker processes, each with a copy of the base model; 1: none beside this process, None: one a GPU."""
    parser: str
    """Format in which the model calls tools, in chat; one of hermes.models.parsers."""
    command: EngineServeOptions
    token: str | None = field(default=None, repr=False)


def serve(options: ServerOptions, announce: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM. `announce` is called with the URL when the model is loaded.

    UsageError: an address that others can reach, without a token. HostError: the state directory cannot be
    used. HermesError: the address is in use, or the model cannot be loaded.
    """
    for package in _REQUIRED:
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, "train,web", "the engine's server")
    policy_for(TOKEN_SCHEME, options.command.host, options.token)  # refused before torch is loaded
    if options.command.ray_address is not None:  # before anything imports Ray
        from hermes.cluster.connect import prepare

        prepare(
            options.command.ray_address, insecure=options.command.ray_insecure, purpose="--ray", flag="--ray"
        )
    import_torch()
    from hermes.engine.checkpoints.store import CheckpointStore

    address = (options.command.host, options.command.port, TOKEN_SCHEME, options.token)
    with (
        listen(*address, any_user=options.command.no_token, backlog=_BACKLOG) as listener,
        contextlib.ExitStack() as stack,
        contextlib.closing(CheckpointStore(options.state_dir or _temporary(stack))) as store,
        _open_engine(options) as engine,
    ):
        run_event_loop(_run(options, engine, store, listener, announce))


def _temporary(stack: contextlib.ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hermes-engine-")))


@contextlib.contextmanager
def _open_engine(options: ServerOptions) -> Iterator[EngineInterface]:
    """The engine of this process, or a front with its workers here or on a Ray cluster; it runs."""
    if options.command.ray_address is None:
        with contextlib.closing(_load_engine(options)) as engine:
            yield engine
        return
    from hermes.cluster.connect import open_cluster
    from hermes.engine.replicas.front import EngineFront
    from hermes.engine.replicas.ray_process import RayPlaces

    with open_cluster(options.command.ray_address, 0) as ray, contextlib.closing(RayPlaces(ray)) as places:
        replicas = options.replicas or places.auto_replicas(options.engine.tensor_parallel_size)
        placements = places.place(options.engine, replicas)
        with contextlib.closing(EngineFront(options.engine, replicas, placements=placements)) as front:
            yield front


def _load_engine(options: ServerOptions) -> EngineInterface:
    if options.replicas == 1 and options.engine.tensor_parallel_size == 1:
        from hermes.engine.engine import Engine

        engine = Engine(options.engine)
        engine.start()
        return engine
    from hermes.engine.replicas.fleet import auto_replicas
    from hermes.engine.replicas.front import EngineFront

    return EngineFront(options.engine, options.replicas or auto_replicas(options.engine.tensor_parallel_size))


async def _run(
    options: ServerOptions,
    engine: EngineInterface,
    store: CheckpointStore,
    listener: Listener,
    announce: Callable[[str], None],
) -> None:
    from hermes.engine.server.app import SIGNED_FILES, build_app
    from hermes.engine.server.openai.routes import openai_routes
    from hermes.engine.server.state import open_state
    from hermes.engine.server.tinker.routes import tinker_routes

    state = open_state(engine, store, options.names, options.command.client_timeout)
    for name, folder in options.policies:
        state.names.serve(name, folder, await asyncio.wrap_future(engine.load_policy(folder)))
    operations = [*openai_routes(state, options.parser), *tinker_routes(state)]
    app = build_app(operations)
    housekeeping = asyncio.create_task(_keep_house(state))
    try:
        settings = HttpSettings(open_paths=(SIGNED_FILES,))
        await serve_until_signal(app, listener, settings, announce=announce, on_signal=state.futures.close)
    finally:
        housekeeping.cancel()


async def _keep_house(state: EngineServerState) -> None:
    """Every second: expires sessions, results and checkpoints, and offloads policies."""
    while True:
        await asyncio.sleep(_HOUSEKEEPING_S)
        state.sessions.expire()
        state.futures.expire(time.monotonic())
        try:
            now_s = time.time()
            for checkpoint in state.store.expired(now_s):
                async with state.policies.replacement(checkpoint.path):
                    await state.policies.copy_on_replace(checkpoint)
                    await asyncio.to_thread(state.store.delete, checkpoint, expired_by_s=now_s)
            await state.policies.trim()
        except Exception:
            _logger.exception("housekeeping failed; it is retried")
