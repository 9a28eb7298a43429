"""The server process of `hermes web`."""

from __future__ import annotations

import contextlib
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hermes.errors import MissingDependencyError
from hermes.serving import HttpSettings, Listener, listen, run_event_loop, serve_in_thread, serve_until_signal

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from hermes.config.load import Config
    from hermes.web.context import WebContext

PORT = 8765
_BROWSER_WAIT_S = 0.3
_GUESSES = 30


@dataclass(frozen=True, slots=True)
class WebOptions:
    host: str = "127.0.0.1"
    port: int = PORT
    """0: any free one."""
    token: str | None = field(default=None, repr=False)
    """May do everything."""
    rater_token: str | None = field(default=None, repr=False)
    """May read and rate."""
    open_browser: bool = False


def serve(config: Config, options: WebOptions, announce: Callable[[str], None]) -> None:
    """Serves until a signal ends it. `announce` is called with the URL once a browser can connect.

    UsageError: an address that other machines can reach, without a token. HermesError: the address is taken.
    """
    _require_packages()
    with _open(config, options) as site:
        if options.open_browser:
            threading.Thread(target=_open_browser, args=(site.listener.url,), daemon=True).start()
        settings = replace(site.settings, grace_s=3)
        on_signal = site.context.streams.stopping.set
        run_event_loop(
            serve_until_signal(site.app, site.listener, settings, announce=announce, on_signal=on_signal)
        )


@contextlib.contextmanager
def serve_in_background(config: Config, options: WebOptions) -> Iterator[str]:
    """The app in a thread of this process, for tests and measurements; gives its URL."""
    with (
        _open(config, options) as site,
        serve_in_thread(site.app, site.listener, replace(site.settings, grace_s=1), name="hermes-web"),
    ):
        try:
            yield site.listener.url
        finally:
            site.context.streams.stopping.set()


@dataclass(frozen=True, slots=True)
class _Site:
    app: ASGIApp
    context: WebContext
    listener: Listener
    settings: HttpSettings


@contextlib.contextmanager
def _open(config: Config, options: WebOptions) -> Iterator[_Site]:
    from hermes.web.security import OPEN_PATHS, WebSessions, refuse

    sessions = WebSessions(options.token, options.rater_token)
    with listen(options.host, options.port, sessions.scheme(), sessions.any_token) as listener:
        from hermes.web.app import build_app  # after what may be refused: it takes a while
        from hermes.web.context import WebContext

        with contextlib.closing(WebContext(config)) as context:
            settings = HttpSettings(open_paths=OPEN_PATHS, refuse=refuse, guesses_a_minute=_GUESSES)
            yield _Site(build_app(context, sessions), context, listener, settings)


def _open_browser(url: str) -> None:
    time.sleep(_BROWSER_WAIT_S)
    webbrowser.open(url)


def _require_packages() -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(error.name or "uvicorn", "web", "the web app") from error
