"""The server process: address, state directory, event loop, signals, orderly shutdown.

The trajectory API's token: `Authorization: Bearer TOKEN`, or the password of a URL.

A URL (http://hermes:TOKEN@host:8000) works with clients that have no setting for a token.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ctypes
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import MissingDependencyError
from hermes.rollouts.intake import IntakeLimits
from hermes.safety.access import Headers, TokenScheme
from hermes.serving import HttpSettings, Listener, listen, run_event_loop, serve_until_signal
from hermes.serving.trajectory_api import TOKEN_VARIABLE

if TYPE_CHECKING:
    from hermes.rollouts.service import TrajectoryService

_TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class TrajectoryServerOptions:
    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""
    state_dir: Path | None = None
    """Where the journal is stored; None: in memory, lost when the process ends."""
    token: str | None = field(default=None, repr=False)
    any_user: bool = False
    """On loopback without a token: answer every user of this machine, not only the one who started it."""
    limits: IntakeLimits = field(default_factory=IntakeLimits)


def serve(options: TrajectoryServerOptions, announce: Callable[[str], None]) -> None:
    """Serves until a signal ends it. `announce` is called with the URL once clients can connect.

    UsageError: an address that other machines can reach, without a token. StoreError: the state directory
    cannot be used. HermesError: the address is in use.
    """
    try:
        import httptools  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(error.name or "uvicorn", "web", "the trajectory API") from error
    if options.state_dir:
        _keep_freed_memory()
    with listen(
        options.host, options.port, TOKEN_SCHEME, options.token, any_user=options.any_user
    ) as listener:
        run_event_loop(_run(options, listener, announce))


def _keep_freed_memory() -> None:
    """Lets the next body reuse the last one's memory: mapping it anew costs an eighth of the CPU time.

    Not for a server that stores groups in memory, which it would fragment.
    """
    mmap_threshold, trim_threshold = -3, -1
    with contextlib.suppress(AttributeError, OSError):  # not glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 64 << 20)


async def _run(options: TrajectoryServerOptions, listener: Listener, announce: Callable[[str], None]) -> None:
    from hermes.rollouts.http.app import build_app, refuse
    from hermes.rollouts.http.protocol import HttpConnection
    from hermes.rollouts.journal.journal import FileJournal, GroupJournal, MemoryJournal
    from hermes.rollouts.parsing.worker import Parser
    from hermes.rollouts.service import TrajectoryService

    journal: GroupJournal = (
        FileJournal(options.state_dir, time.time()) if options.state_dir else MemoryJournal()
    )
    service = TrajectoryService(journal, options.limits)
    parser = Parser()
    app = build_app(service, parser)
    settings = HttpSettings(http=HttpConnection, keep_alive_s=30, refuse=refuse)
    clock = asyncio.create_task(_expire_every_second(service))
    try:
        await serve_until_signal(app, listener, settings, announce=announce)
    finally:
        clock.cancel()
        await parser.close()
        await journal.close()


async def _expire_every_second(service: TrajectoryService) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        service.expire()


def _has_token(headers: Headers, token: str) -> bool:
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    credential = value.strip()
    if scheme.lower() == b"basic":
        try:
            credential = base64.b64decode(credential, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(credential, token.encode())


TOKEN_SCHEME = TokenScheme(
    TOKEN_VARIABLE, "read and reset the run", "Authorization: Bearer, or http://hermes:TOKEN@host", _has_token
)
