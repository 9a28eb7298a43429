"""A container that works in the files of its own image, as a task's authors expect: root, a writable system.

It has an engine's usual capabilities without NET_RAW, and the limits of any sandbox. Everything in it may be
changed by its commands, so whatever must stay out of their reach runs in another container: `commit` keeps
its files as an image. Names say which process a container or image belongs to: a label would be inherited by
what a user makes of it, and could be set by the authors of an image.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import posixpath
import re
import resource
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import new_id
from hermes.errors import SandboxError
from hermes.sandbox.docker import (
    MAIN,
    DockerSandbox,
    client_env,
    container_network,
    kill_all_argv,
    limit_argv,
    mount_argv,
)
from hermes.sandbox.files import read_with, write_with
from hermes.sandbox.supervisor import ProcessResult, SandboxSupervisor
from hermes.sandbox.workspace import Workspace
from hermes.store.owner import is_alive, this_process

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings

REPOSITORY = "localhost/hermes-task"
_CONTAINER = "hermes-task-"
TRIAL_IMAGE = f"{REPOSITORY}:trial-"
_OWNED = re.compile(rf"({_CONTAINER}|{re.escape(TRIAL_IMAGE)})(\d+)-(\d+)-([0-9a-f]+)-[0-9a-z]+")
_TIMEOUT_S = 300.0
_MOST_ULIMIT = 32_768


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    engine: str
    image: str
    workspace: Workspace
    """Its mounts, variables and shown paths; its folder is not seen."""
    user: str | None
    cpus: int


class TaskContainer(DockerSandbox):
    """Relative paths begin at `/`."""

    workspace = "/"

    def __init__(
        self, settings: SandboxSettings, plan: ContainerPlan, name: str, supervisor: SandboxSupervisor
    ) -> None:
        super().__init__(settings, plan.workspace, plan.engine, name, supervisor)
        self._plan = plan

    @classmethod
    async def start_from(cls, settings: SandboxSettings, plan: ContainerPlan) -> TaskContainer:
        supervisor = await SandboxSupervisor.open()
        sandbox = cls(settings, plan, container_name(), supervisor)
        await sandbox._start_or_remove()
        return sandbox

    def _start_argv(self) -> list[str]:
        return task_argv(self._plan, self._settings, self._name)

    def _kill_all_argv(self) -> list[str]:
        return kill_all_argv(self._engine, self._name, as_root=True)

    async def read_file(self, path: str, max_bytes: int | None = None) -> bytes:
        return await read_with(self._run_argv, posixpath.join("/", path), max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        await write_with(self._run_argv, posixpath.join("/", path), data)

    async def _directory(self, cwd: str | None) -> str:
        return posixpath.join("/", cwd or "")

    async def _run_argv(
        self, argv: Sequence[str], stdin: bytes | None, max_output_bytes: int
    ) -> ProcessResult:
        return await self._run(argv, None, "/", None, stdin, max_output_bytes)

    async def copy_in(self, source: Path, target: str) -> None:
        """Copies a file, or what is in a folder, and makes the folders above it."""
        is_folder = source.is_dir() and not source.is_symlink()
        folder = target if is_folder else posixpath.dirname(target)
        await self.run(f"mkdir -p -- {shlex.quote(folder)}")
        content = f"{source}/." if is_folder else str(source)
        await call_engine(self._engine, "cp", content, f"{self._name}:{target}")

    async def commit(self, image: str) -> None:
        """Keeps the files as an image. End its processes before: they could still write."""
        await call_engine(self._engine, "commit", self._name, image)


def task_argv(plan: ContainerPlan, settings: SandboxSettings, name: str) -> list[str]:
    """Starts the container and stays attached to it. The image's entry point runs, as it does in Harbor."""
    argv = [plan.engine, "run", "--interactive", "--rm", "--init", "--pull", "never", "--name", name]
    argv += ["--network", container_network(settings)]
    argv += ["--cap-drop", "NET_RAW", "--security-opt", "no-new-privileges"]
    argv += limit_argv(settings, min(plan.cpus, os.cpu_count() or 1))
    for limit, kind in {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}.items():
        hard = resource.getrlimit(kind)[1]  # an engine's default can be above what it may set here
        most = _MOST_ULIMIT if hard == resource.RLIM_INFINITY else min(hard, _MOST_ULIMIT)
        argv += ["--ulimit", f"{limit}={most}:{most}"]
    argv += ["--user", plan.user] if plan.user is not None else []
    for path in plan.workspace.shown_paths:
        argv += ["--mount", f"type=bind,source={path},target={path},readonly"]
    argv += mount_argv(plan.workspace.mounts)
    for variable, value in plan.workspace.variables.items():
        argv += ["--env", f"{variable}={value}"]
    return [*argv, "--workdir", "/", plan.image, "/bin/sh", "-c", MAIN]


async def call_engine(engine: str, *words: str, timeout_s: float = _TIMEOUT_S) -> str:
    """The output of a command of the engine. SandboxError: it failed, with its last line."""
    process = await asyncio.create_subprocess_exec(
        engine,
        *words,
        env=client_env(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise SandboxError(f"{Path(engine).name} {words[0]} did not end in {timeout_s:g} s.") from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    text = output.decode("utf-8", "replace").strip()
    if process.returncode:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raise SandboxError(f"{Path(engine).name} {words[0]}: {lines[-1][-300:] if lines else 'it failed'}")
    return text


def container_name() -> str:
    """A new name for a container of this process."""
    return f"{_CONTAINER}{_owner()}-{new_id().lower()}"


def image_name() -> str:
    """A new name for an image of this process."""
    return f"{TRIAL_IMAGE}{_owner()}-{new_id().lower()}"


def has_ended(name: str) -> bool:
    """Whether the container or image belongs to a process of this machine that has certainly ended."""
    owned = _OWNED.fullmatch(name)
    if owned is None or owned[4] != _machine():
        return False
    return not is_alive(f"{owned[2]}:{owned[3] if int(owned[3]) else '?'}")


def _owner() -> str:
    pid, _, started = this_process().partition(":")
    return f"{pid}-{'0' if started == '?' else started}-{_machine()}"


def _machine() -> str:
    """Where numbers of processes mean something: several machines and containers may share an engine."""
    words = [platform.node()]
    with suppress(OSError):
        words.append(Path("/etc/machine-id").read_text())
    with suppress(OSError):
        words.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:8]


def containers(engine: str) -> list[str]:
    """The names of all containers of tasks, running or not, on this engine."""
    listing = _output([engine, "ps", "--all", "--filter", f"name={_CONTAINER}", "--format", "{{.Names}}"])
    return [name for name in (listing or "").split() if name.startswith(_CONTAINER)]


def images(engine: str) -> list[str]:
    """The names of all images of tasks."""
    words = ["images", "--filter", f"reference={REPOSITORY}:*", "--format", "{{.Repository}}:{{.Tag}}"]
    return [name for name in (_output([engine, *words]) or "").split() if name.startswith(f"{REPOSITORY}:")]


def remove_container(engine: str, name: str) -> bool:
    """Removes a container with its processes; False: it could not be removed."""
    return _output([engine, "rm", "--force", name]) is not None


def remove_image(engine: str, name: str) -> bool:
    """Takes the name from an image, and removes what has no other name.

    False: the engine refuses that, since a container was made of the image, by whomever and however lately.
    By force it would remove that container too.
    """
    return _output([engine, "rmi", name]) is not None


def _output(words: Sequence[str]) -> str | None:
    """The engine's output; None: it failed."""
    ended = subprocess.run(
        words, env=client_env(), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    return ended.stdout.strip() if ended.returncode == 0 else None
