"""Opens every listening socket of Hermes, decides who may talk to it, and runs ASGI apps under uvicorn.

Promises:

- `listen` and `listen_at` are the only places that open a socket for others. `listen` decides by host and
  token who is answered: without a token only this user (and root), and only on loopback. A server that names
  no scheme has no token. `listen_at` answers who can reach a path, such as a sandbox that it is shown to.
- It binds the socket before anything else is set up. The URL is final then, also for port 0, and clients may
  connect: their requests wait in the backlog until the application is ready.
- What is served on a listener is guarded by its policy, whatever the application does: Host, Origin and
  token of each request, and the user at the other end of each connection (`protocol`, `peers`).
- `serve_until_signal` returns after SIGINT or SIGTERM, once requests in progress have ended or the grace
  period is over, so that the caller closes its resources in order. uvicorn's own handler would raise the
  signal again and end the process first.
- `serve_in_thread` serves until its context ends and leaves the signals of the process alone.
- A head of a request is bounded in size and time, and a stalled body is cut (`protocol`). uvloop is used if
  it is installed.

Not promised: TLS, lifespan events, access logs, several processes; users are told apart on Linux only, and a
server that cannot do it says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib.util
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes.errors import HermesError, MissingDependencyError
from hermes.safety.access import NO_TOKEN, Headers, HttpAccessPolicy, Refusal, TokenScheme, policy_for
from hermes.serving.peers import are_told_apart
from hermes.serving.protocol import LimitedHttpProtocol

if TYPE_CHECKING:
    import uvicorn
    from starlette.responses import Response
    from starlette.types import ASGIApp, Scope

    from hermes.serving.protocol import LimitedHttpProtocol


_logger = logging.getLogger(__name__)
_MAX_ADDRESSES = 10_000
_MAX_WEBSOCKET_BYTES = 64 << 20
_TOO_MANY = Refusal(429, "too many wrong tokens came from this address; wait a minute")


def _refuse_as_json(scope: Scope, refusal: Refusal) -> Response:
    return JSONResponse({"detail": refusal.detail}, refusal.status)


class GuessLimit:
    """How many wrong tokens an address may show: as many as a minute's at once, then one after the other."""

    def __init__(self, a_minute: int) -> None:
        self._a_minute = a_minute
        self._spent: dict[str, tuple[float, float]] = {}
        """By address: wrong tokens that still count, and when that was so."""

    def is_spent(self, address: str) -> bool:
        return self._now_spent(address) >= self._a_minute

    def count(self, address: str) -> None:
        if len(self._spent) >= _MAX_ADDRESSES:
            self._spent.clear()
        self._spent[address] = (self._now_spent(address) + 1, time.monotonic())

    def _now_spent(self, address: str) -> float:
        spent, at_s = self._spent.get(address, (0.0, 0.0))
        return max(0.0, spent - (time.monotonic() - at_s) * self._a_minute / 60)


class GuardedApp:
    """Refuses a request before anything of its body is read."""

    def __init__(
        self,
        app: ASGIApp,
        policy: HttpAccessPolicy,
        open_paths: tuple[str, ...] = (),
        refuse: Callable[[Scope, Refusal], Response] | None = None,
        guesses_a_minute: int | None = None,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._guesses = GuessLimit(guesses_a_minute) if guesses_a_minute and policy.token else None
        self.policy = policy
        self.refuse = refuse or _refuse_as_json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if scope["type"] == "websocket":
            if self.policy.refusal(headers) is None:
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})  # before it is accepted: 403
            return
        is_open = scope["path"].startswith(self._open_paths)
        shows_token = b"authorization" in headers or (is_open and scope["method"] == "POST")
        if self._guesses is None or not shows_token:
            await self._answer(scope, receive, send, headers, is_open)
            return
        guesses, address = self._guesses, (scope["client"] or ("",))[0]
        if guesses.is_spent(address):
            await self.refuse(scope, _TOO_MANY)(scope, receive, send)
            return

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                guesses.count(address)
            await send(message)

        await self._answer(scope, receive, count_and_send, headers, is_open)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, is_open: bool
    ) -> None:
        refusal = self.policy.refusal(headers, signed=is_open)
        respond = self._app if refusal is None else self.refuse(scope, refusal)
        await respond(scope, receive, send)


def guarded_protocol(
    base: type[LimitedHttpProtocol] | None, app: GuardedApp, listening: socket.socket
) -> type[LimitedHttpProtocol]:
    """The protocol class, which refuses the connections of other users where the policy wants it.

    Where the system does not tell users apart all are answered, and a warning says so.
    """
    base = base or LimitedHttpProtocol
    if not app.policy.only_user:
        return base
    scheme = app.policy.scheme
    if not are_told_apart(listening):
        _logger.warning(
            "this system does not tell whose a connection is, so every user of this machine can %s%s",
            scheme.at_stake,
            f"; set {scheme.variable}" if scheme.variable else "",
        )
        return base
    way_in = f"; for others, start it with a token in {scheme.variable}" if scheme.variable else ""
    refusal = Refusal(403, f"this server answers only the user who started it{way_in}")
    response = app.refuse({"type": "http", "method": "GET", "path": "/", "headers": []}, refusal)
    return type(f"Own{base.__name__}", (base,), {"stranger_response": response})


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket."""

    socket: socket.socket
    url: str
    """`http://host:port` with the real port."""
    policy: HttpAccessPolicy
    """Who may talk to it."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    http: type[LimitedHttpProtocol] | None = None
    """A protocol class of one's own."""
    keep_alive_s: int = 75
    """How long an idle connection stays open."""
    grace_s: int = 10
    """How long a shutdown waits for requests in progress."""
    open_paths: tuple[str, ...] = ()
    """Beginnings of paths that need no token, such as those of signed URLs; other sites are refused there."""
    refuse: Callable[[Scope, Refusal], Response] | None = None
    """How a refusal is answered; None: as JSON."""
    websockets: bool = False
    """Whether the application has WebSockets; they need the package of that name."""
    guesses_a_minute: int | None = None
    """Wrong tokens of one address after which it has to wait, also with the right one; None: any number. For
    servers of people: a program with a stale token would hold up all others of its machine."""


@contextlib.contextmanager
def listen(
    host: str,
    port: int,
    scheme: TokenScheme = NO_TOKEN,
    token: str | None = None,
    *,
    any_user: bool = False,
    backlog: int = 1024,
) -> Iterator[Listener]:
    """A listener that is closed when the context ends; port 0 is any free port.

    UsageError: an address that other machines can reach, without a token. HermesError: the address is in use
    or cannot be bound.
    """
    policy = policy_for(scheme, host, token, any_user=any_user)
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
        yield Listener(bound_socket, f"http://{name}:{bound_socket.getsockname()[1]}", policy)


@contextlib.contextmanager
def listen_at(path: Path) -> Iterator[Listener]:
    """A listener at a path of the file system, for every process that can reach the path.

    What is served there has to tell its clients apart by what they know.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound_socket:
        bound_socket.bind(str(path))
        path.chmod(0o666)
        bound_socket.listen(1024)
        yield Listener(bound_socket, f"http+unix://{path}", HttpAccessPolicy(NO_TOKEN, any_user=True))


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
    try:
        import uvicorn

    except ImportError as error:
        raise MissingDependencyError(error.name or "uvicorn", "web", "an HTTP server") from error
    if settings.websockets and importlib.util.find_spec("websockets") is None:
        raise MissingDependencyError("websockets", "envs", "a server of WebSockets")

    class SignalFreeServer(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    guarded = GuardedApp(
        app, listener.policy, settings.open_paths, settings.refuse, settings.guesses_a_minute
    )
    return SignalFreeServer(
        uvicorn.Config(
            guarded,
            http=guarded_protocol(settings.http, guarded, listener.socket),
            ws="websockets-sansio" if settings.websockets else "none",
            ws_max_size=_MAX_WEBSOCKET_BYTES,
            ws_ping_interval=None,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=settings.grace_s,
        )
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
