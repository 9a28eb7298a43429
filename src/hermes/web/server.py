"""The server process of `hermes web`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hermes.errors import MissingDependencyError
from hermes.safety.access import policy_for
from hermes.serving import HttpSettings, Listener, listen, run_event_loop, serve_in_thread, serve_until_signal

if TYPE_CHECKING:
    from hermes.config.load import Config

PORT = 8765
_BROWSER_WAIT_S = 0.3


@dataclass(frozen=True, slots=True)
class WebOptions:
    host: str = "127.0.0.1"
    port: int = PORT
    """0: any free one."""
    token: str | None = field(default=None, repr=False)
    open_browser: bool = False


def serve(config: Config, options: WebOptions, announce: Callable[[str], None]) -> None:
    """Serves until a signal ends it. `announce` is called with the URL once a browser can connect.

    UsageError: an address that other machines can reach, without a token. HermesError: the address is taken.
    """
    _require_packages()
    from hermes.web.security import TOKEN_SCHEME

    policy_for(TOKEN_SCHEME, options.host, options.token)
    with listen(options.host, options.port) as listener:
        run_event_loop(_run(config, options, listener, announce))


@contextlib.contextmanager
def serve_in_background(config: Config, options: WebOptions) -> Iterator[str]:
    """The app in a thread of this process, for tests and measurements; gives its URL."""
    from hermes.web.app import build_app
    from hermes.web.context import WebContext
    from hermes.web.security import TOKEN_SCHEME

    context = WebContext(config)
    policy = policy_for(TOKEN_SCHEME, options.host, options.token)
    try:
        with (
            listen(options.host, options.port) as listener,
            serve_in_thread(build_app(context, policy), listener, HttpSettings(grace_s=1), name="hermes-web"),
        ):
            try:
                yield listener.url
            finally:
                context.stopping.set()
    finally:
        context.close()


async def _run(
    config: Config, options: WebOptions, listener: Listener, announce: Callable[[str], None]
) -> None:
    from hermes.web.app import build_app
    from hermes.web.context import WebContext
    from hermes.web.security import TOKEN_SCHEME

    context = WebContext(config)
    app = build_app(context, policy_for(TOKEN_SCHEME, options.host, options.token))
    if options.open_browser:
        threading.Thread(target=_open_browser, args=(listener.url,), daemon=True).start()
    settings = HttpSettings(grace_s=3)
    try:
        await serve_until_signal(app, listener, settings, announce=announce, on_signal=context.stopping.set)
    finally:
        await asyncio.to_thread(context.close)


def _open_browser(url: str) -> None:
    time.sleep(_BROWSER_WAIT_S)
    webbrowser.open(url)


def _require_packages() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(error.name or "uvicorn", "web", "the web app") from error
