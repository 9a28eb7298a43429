"""Runs an ASGI application under uvicorn: the way every HTTP server of Hermes is started.

Promises:

- `listen` binds the socket before anything else is set up. The URL is final then, also for port 0, and
  clients may connect: their requests wait in the backlog until the application is ready.
- `serve_until_signal` returns after SIGINT or SIGTERM, once requests in progress have ended or the grace
  period is over, so that the caller closes its resources in order. uvicorn's own handler would raise the
  signal again and end the process first.
- `serve_in_thread` serves until its context ends and leaves the signals of the process alone.
- uvloop and httptools are used if they are installed. With httptools a head of a request is bounded in size
  and time, a stalled body is cut, and with `only_user` other users of this machine are refused (`protocol`).

Not promised: access control (`hermes.safety.access`), TLS, lifespan events, access logs, several processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hermes.errors import HermesError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket."""

    socket: socket.socket
    url: str
    """`http://host:port` with the real port."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    http: type[asyncio.Protocol] | Literal["auto", "h11", "httptools"] = "auto"
    """uvicorn's name of an HTTP implementation, or a protocol class of one's own."""
    keep_alive_s: int = 75
    """How long an idle connection stays open."""
    grace_s: int = 10
    """How long a shutdown waits for requests in progress."""
    only_user: bool = False
    """Refuses the connections of other users of this machine, if the system can tell whose they are."""


@contextlib.contextmanager
def listen(host: str, port: int, backlog: int = 1024) -> Iterator[Listener]:
    """A listener that is closed when the context ends; port 0 is any free port.

    HermesError: the address is in use or cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound_socket = socket.create_server((host, port), family=family, backlog=backlog)
    except (OSError, OverflowError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = "it is taken" if in_use else error
        raise HermesError(
            f"cannot listen on {host} port {port}: {reason}", "choose another --host or --port"
        ) from error
    with bound_socket:
        name = f"[{host}]" if ":" in host else host
        yield Listener(bound_socket, f"http://{name}:{bound_socket.getsockname()[1]}")


def run_event_loop(main: Coroutine[Any, Any, None]) -> None:
    """Runs `main` in an event loop of its own: uvloop's if it is installed, else asyncio's."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)


async def serve_until_signal(
    app: ASGIApp,
    listener: Listener,
    settings: HttpSettings | None = None,
    *,
    announce: Callable[[str], None],
    on_signal: Callable[[], None] | None = None,
) -> None:
    """Serves `app` until SIGINT or SIGTERM. Only in the main thread.

    `announce` is called with the URL when a signal ends the server in order, and not before. `on_signal` is
    called in the event loop before the shutdown begins, for instance to end long polls. A second SIGINT ends
    the shutdown without waiting for requests in progress.
    """
    server = _make_server(app, listener, settings or HttpSettings())

    def stop(number: int) -> None:
        if on_signal is not None:
            on_signal()
        server.handle_exit(number, None)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    announce(listener.url)
    await server.serve(sockets=[listener.socket])


@contextlib.contextmanager
def serve_in_thread(
    app: ASGIApp, listener: Listener, settings: HttpSettings | None = None, *, name: str = "http-server"
) -> Iterator[None]:
    """Serves `app` in a thread with an event loop of its own, until the context ends."""
    server = _make_server(app, listener, settings or HttpSettings())

    def serve() -> None:
        run_event_loop(server.serve(sockets=[listener.socket]))

    thread = threading.Thread(target=serve, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _make_server(app: ASGIApp, listener: Listener, settings: HttpSettings) -> uvicorn.Server:
    import uvicorn

    class SignalFreeServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return SignalFreeServer(
        uvicorn.Config(
            app,
            http=_http_implementation(settings, listener),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=settings.grace_s,
        )
    )


def _http_implementation(settings: HttpSettings, listener: Listener) -> Any:
    """The protocol class with limits; h11, which limits the head only, where httptools is not installed."""
    try:
        from hermes.serving.protocol import LimitedHttpProtocol
    except ImportError:
        return "h11" if settings.http == "auto" else settings.http
    base = LimitedHttpProtocol if settings.http == "auto" else settings.http
    if not settings.only_user or not isinstance(base, type) or not issubclass(base, LimitedHttpProtocol):
        return base
    if not knows_own_user(listener):
        return base
    return type(f"Own{base.__name__}", (base,), {"only_user": True})


def knows_own_user(listener: Listener) -> bool:
    """Whether this system tells whose a connection to the listener is; tried with one of our own."""
    from hermes.serving.peers import owner_of

    address = listener.socket.getsockname()[:2]
    try:
        with socket.create_connection(address, timeout=2.0) as client:
            return owner_of(client.getsockname()[:2], client.getpeername()[:2]) == os.geteuid()
    except OSError:
        return False


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
