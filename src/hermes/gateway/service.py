"""Runs the gateway: serving until a signal, or for one command; and settling what was recorded.

A group of calls is settled when the command it belongs to has ended, when nothing came for `idle_s`, and when
the gateway stops. What a killed gateway left is settled by the next one that starts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from hermes.agent.build import open_writer
from hermes.config.load import Config
from hermes.config.paths import db_path
from hermes.core import JSONObject
from hermes.errors import UsageError
from hermes.gateway import journal as journals
from hermes.gateway.journal import Group, Journal, Recording
from hermes.gateway.relay import Relay, RelayOptions
from hermes.gateway.settle import Settled, settle
from hermes.gateway.upstream import Upstream
from hermes.models.usage import price_of
from hermes.safety.access import TokenScheme
from hermes.serving import HttpSettings, Listener, listen, run_event_loop, serve_in_thread, serve_until_signal
from hermes.store import Reader, Writer

TOKEN_VARIABLE = "HERMES_RECORD_TOKEN"
_CHECK_S = 2.0
_MOST_CALLS = 5_000
"""A group with this many calls is settled while it goes on, because its journal is read as a whole."""


def _carries(headers: dict[bytes, bytes] | object, token: str) -> bool:
    import hmac

    assert hasattr(headers, "get")
    bearer: bytes = headers.get(b"authorization", b"").partition(b" ")[2].strip()
    return any(hmac.compare_digest(key, token.encode()) for key in (bearer, headers.get(b"x-api-key", b"")))


TOKEN_SCHEME = TokenScheme(TOKEN_VARIABLE, "use your provider's account", "as the client's API key", _carries)


def recordings_dir(config: Config) -> Path:
    return config.home / "recordings"


@contextmanager
def _quiet_server() -> Iterator[None]:
    """A stream that was cut is recorded: nothing about it is printed into the terminal of an agent."""
    logger = logging.getLogger("uvicorn.error")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


class Settling:
    """Turns recordings into trajectories; one at a time. The store is open only meanwhile."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def run(self, recordings: tuple[Recording, ...]) -> Settled:
        settled = Settled()
        if not recordings:
            return settled
        with self._store() as (reader, writer):
            for recording in recordings:
                settled += settle(
                    recording, reader, writer, lambda name: price_of(self._config.settings, name)
                )
        return settled

    def recover(self) -> Settled:
        """Settles the groups that killed processes left behind."""
        settled = Settled()
        for recordings in journals.abandoned(recordings_dir(self._config)):
            settled += self.run(recordings)
        return settled

    @contextmanager
    def _store(self) -> Iterator[tuple[Reader, Writer]]:
        with open_writer(self._config) as writer, Reader(db_path(self._config.home)) as reader:
            yield reader, writer


@dataclass(frozen=True, slots=True)
class ServeOptions:
    host: str = "127.0.0.1"
    port: int = 8790
    token: str | None = None
    relay: RelayOptions = field(default_factory=RelayOptions)
    idle_s: float = 300.0


def serve(config: Config, options: ServeOptions, announce: Callable[[str], None]) -> Settled:
    """Serves until SIGINT or SIGTERM; what was recorded after the last settling."""
    if options.token is not None and (options.relay.upstream is None or options.relay.upstream.key is None):
        raise UsageError(
            "with a token the gateway needs a key of its own: the client's key is the token",
            "name a provider whose key is configured, with --model or --base-url",
        )
    settling = Settling(config)
    settling.recover()
    journal = Journal(recordings_dir(config), config.secrets)
    relay = Relay(journal, options.relay)
    try:
        with _quiet_server(), listen(options.host, options.port, TOKEN_SCHEME, options.token) as listener:

            async def main() -> None:
                async with _settled_while_idle(relay, journal, settling, options.idle_s):
                    await serve_until_signal(relay, listener, HttpSettings(), announce=announce)
                await relay.close()

            run_event_loop(main())
        return _settle_rest(relay, journal, settling)
    finally:
        journal.close()


def forward(upstream: Upstream, port: int, announce: Callable[[str], None]) -> None:
    """Passes calls on until SIGINT or SIGTERM, and records none of them."""
    relay = Relay(None, RelayOptions(upstream))

    async def main(listener: Listener) -> None:
        await serve_until_signal(relay, listener, HttpSettings(), announce=announce)
        await relay.close()

    with _quiet_server(), listen("127.0.0.1", port) as listener:
        run_event_loop(main(listener))


def _settle_rest(relay: Relay, journal: Journal, settling: Settling) -> Settled:
    files = [journal.rotate(group) for group in list(relay.activity)]
    return settling.run(tuple(Recording(path) for path in files if path is not None))


@asynccontextmanager
async def _settled_while_idle(
    relay: Relay, journal: Journal, settling: Settling, idle_s: float
) -> AsyncIterator[None]:
    async def work() -> None:
        while True:
            await asyncio.sleep(min(_CHECK_S, idle_s))
            for name, activity in list(relay.activity.items()):
                idle = not activity.running and time.monotonic() - activity.last_s >= idle_s
                if idle or activity.calls >= _MOST_CALLS:
                    if activity.running:
                        activity.calls = 0
                    else:
                        del relay.activity[name]
                    path = await asyncio.to_thread(journal.rotate, name)
                    if path is not None:
                        await asyncio.to_thread(settling.run, (Recording(path),))

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@dataclass
class CommandRecording:
    """The recording of one command."""

    url: str
    """Where its calls go: without /v1."""
    _journal: Journal
    group: Group
    settled: Settled = field(default_factory=Settled)

    def note(self, **facts: object) -> None:
        noted: JSONObject = dict(facts)
        self._journal.note(Group(self.group.id, facts=noted)).result()


@contextmanager
def record_command(config: Config, options: RelayOptions, key: str) -> Iterator[CommandRecording]:
    """A gateway for one command; when the block ends its calls are trajectories (`settled`)."""
    settling = Settling(config)
    settling.recover()
    journal = Journal(recordings_dir(config), config.secrets)
    relay = Relay(journal, options)
    recording = CommandRecording("", journal, Group(key))
    try:
        with ExitStack() as stack:
            stack.enter_context(_quiet_server())
            listener = stack.enter_context(listen("127.0.0.1", 0))
            stack.enter_context(serve_in_thread(relay, listener, HttpSettings(grace_s=2), name="gateway"))
            recording.url = f"{listener.url}/r/{key}"
            yield recording
        path = journal.rotate(key)
        if path is not None:
            recording.settled = settling.run((Recording(path),))
    finally:
        journal.close()
