"""Servers of an OpenEnv package as processes of ours: started, started again when they die, and ended.

What they print goes to log files, which failures name. A package is code that you trust: it runs as you, but
with a home of its own, because environments exist that write their own name into ~/.gitconfig.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import site
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hermes.envs.openenv.wire import UNIX
from hermes.errors import ConfigError, HermesError

_START_S = 120.0
_END_S = 5.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class _Server:
    process: asyncio.subprocess.Process
    url: str


class PackageServers:
    """`count` servers of one package, on Unix sockets that only this user can open.

    Many of them run the code that they are sent.
    """

    def __init__(self, python: Path, package: str, count: int, folder: Path) -> None:
        self._python, self._package = python, package
        self._logs, self._home = folder / "logs", folder / "home"
        self._servers: list[_Server | None] = [None] * count
        self._sockets = TemporaryDirectory(prefix="hermes-openenv-")
        self._starting = asyncio.Lock()

    async def urls(self) -> list[str]:
        """The addresses of all servers; those that have ended are started again first.

        ConfigError: there is no such interpreter. HermesError: the package cannot be served.
        """
        if not self._python.is_file():
            raise ConfigError(
                f"there is no interpreter {self._python}.", "Name one that has the package: --env.python PATH"
            )
        async with self._starting:
            for number, server in enumerate(self._servers):
                if server is None or server.process.returncode is not None:
                    self._servers[number] = await self._start(number)
            return [server.url for server in self._servers if server is not None]

    async def end(self, url: str) -> None:
        """Ends a server that does not answer: the next episode begins on a new one."""
        for server in self._servers:
            if server is not None and server.url == url:
                await _end(server.process)

    async def close(self) -> None:
        servers, self._servers = self._servers, []
        await asyncio.gather(*(_end(server.process) for server in servers if server is not None))
        self._sockets.cleanup()

    async def _start(self, number: int) -> _Server:
        for folder in (self._logs, self._home):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        log_path = self._logs / f"server-{os.getpid()}-{number}.log"
        launcher = Path(__file__).with_name("launcher.py")
        socket_path = Path(self._sockets.name) / str(number)
        socket_path.unlink(missing_ok=True)
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                str(self._python),
                str(launcher),
                self._package,
                str(socket_path),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_variables(self._home),
                start_new_session=True,
            )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_S):
                is_imported = bool(await process.stdout.readline())
                is_ready = is_imported and await _listens(socket_path, process)
        except BaseException as error:
            await _end(process)
            if isinstance(error, TimeoutError):
                raise HermesError(
                    f"{self._package} was not ready after {_START_S:g} s.", f"Its log is {log_path}."
                ) from error
            raise
        if not is_ready:
            await _end(process)
            lines = log_path.read_text("utf-8", "replace").strip().splitlines()
            raise HermesError(
                f"{self._package} cannot be served: {lines[-1] if lines else 'it printed nothing'}",
                f"Is it installed for {self._python}? Its log is {log_path}.",
            )
        return _Server(process, f"{UNIX}{socket_path}")


async def _listens(socket_path: Path, process: asyncio.subprocess.Process) -> bool:
    """Waits until connections are accepted; False: the process has ended."""
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_unix_connection(socket_path)
        except OSError:
            await asyncio.sleep(_POLL_S)
            continue
        writer.close()
        return True
    return False


def _variables(home: Path) -> dict[str, str]:
    """With a home of the package's own; what was downloaded or installed for the user is still found."""
    users = {"XDG_CACHE_HOME": str(Path.home() / ".cache"), "PYTHONUSERBASE": site.getuserbase()}
    return {**users, **os.environ, "HOME": str(home), "PYTHONUNBUFFERED": "1"}


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the process and what it has started."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_S)
