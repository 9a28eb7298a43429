"""Runs commands on this machine, as this user, without isolation.

It provides a workspace, a time-out that ends everything a command started, and an environment without the
variables that look like secrets or come from `.env`. A command can still read, write and access everything
the user can, so safety.approval has to decide which commands run.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config.environment import without_stored
from hermes.config.secrets import looks_secret, url_password
from hermes.safety.paths import resolve_inside
from hermes.sandbox.base import BackgroundProcess, CommandResult
from hermes.sandbox.files import read_inside, write_inside
from hermes.sandbox.supervisor import Launch, LazySupervisor, SandboxSupervisor
from hermes.sandbox.workspace import Workspace

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings

_ROOT = Path("/")
_DEFAULTS = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}
# A directory of ordinary files must not be treated as a repository: its configuration could name programs to
# run, and read-only git commands run without approval.
_GIT = ("safe.bareRepository", "explicit")
_UNWANTED = frozenset(
    ("LESSOPEN", "LESSCLOSE", "CDPATH", "BASHOPTS", "SHELLOPTS", "GLOBIGNORE", "RIPGREP_CONFIG_PATH")
)
"""They change what commands mean that run without approval: `less` runs a program on each file, `cd` leads
elsewhere, a glob matches dotfiles, `rg` follows links."""


class LocalSandbox:
    backend = "local"
    isolated = False

    def __init__(self, workspace: Workspace, command_timeout_s: float) -> None:
        self._workspace = workspace
        self._supervisor = LazySupervisor(SandboxSupervisor.open)
        self._command_timeout_s = command_timeout_s
        environ = {**_DEFAULTS, **without_secrets(without_stored(os.environ))}
        self._env = _with_git_setting({**environ, "PATH": _with_hermes(environ["PATH"])})
        self._shell = shutil.which("bash") or "/bin/sh"

    @classmethod
    async def open(cls, settings: SandboxSettings, workspace: Workspace) -> LocalSandbox:
        return cls(workspace, settings.command_timeout_s)

    @property
    def workspace(self) -> str:
        return str(self._workspace.path)

    async def run(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> CommandResult:
        launch = self._launch(command, cwd, env)
        limit_s = self._command_timeout_s if timeout_s is None else timeout_s
        return (await self._supervisor.run(launch, timeout_s=limit_s, stdin=stdin)).result()

    async def start(self, command: str, *, cwd: str | None = None) -> BackgroundProcess:
        return await self._supervisor.start(self._launch(command, cwd, None), stdin=True)

    async def read_file(self, path: str, max_bytes: int | None = None) -> bytes:
        return await asyncio.to_thread(read_inside, _ROOT, self._absolute(path), max_bytes, "/")

    async def write_file(self, path: str, data: bytes) -> None:
        """Refuses paths in `.git`: git executes what is configured there without approval."""
        await asyncio.to_thread(_write, self._absolute(path), data)

    async def kill_all(self) -> None:
        await self._supervisor.kill_all()  # a command's descendants end with it

    async def close(self) -> None:
        await self._supervisor.close()
        await asyncio.to_thread(self._workspace.remove)

    def _launch(self, command: str, cwd: str | None, env: Mapping[str, str] | None) -> Launch:
        argv = (self._shell, "-c", command)
        return Launch(argv, command, self._absolute(cwd or "."), {**self._env, **(env or {})})

    def _absolute(self, path: str) -> str:
        return str(self._workspace.path / path)


def _write(path: str, data: bytes) -> None:
    if ".git" in (part.lower() for part in resolve_inside(_ROOT, path).parts):
        raise PermissionError(errno.EACCES, "files in .git can only be changed by commands", path)
    write_inside(_ROOT, path, data, "/")


def _with_git_setting(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with `_GIT` behind the settings of git that it may already carry."""
    count = environ.get("GIT_CONFIG_COUNT", "0")
    number = int(count) if count.isdecimal() else 0
    key, value = _GIT
    setting = {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    variables = {name: text for name, text in environ.items() if name not in _UNWANTED}
    return {**variables, **setting, "GIT_CONFIG_COUNT": str(number + 1)}


def _with_hermes(path: str) -> str:
    """The PATH on which `hermes` is found, last, also where its virtual environment is not activated."""
    scripts = Path(sys.executable).parent
    if shutil.which("hermes", path=path) or not (scripts / "hermes").is_file():
        return path
    return f"{path}{os.pathsep}{scripts}"


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without variables that are named like a secret or contain a URL with a password."""
    return {
        name: value
        for name, value in environ.items()
        if not looks_secret(name) and url_password(value) is None
    }
