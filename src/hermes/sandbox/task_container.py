"""A container that works in the files of its own image, as a task's authors expect: root, a writable system.

It has an engine's usual capabilities without NET_RAW, and the limits of any sandbox. Everything in it may be
changed by its commands, so whatever must stay out of their reach runs in another container: `commit` keeps
its files as an image. Containers and images have the label `LABEL`: its value is the process they belong to.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import resource
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

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings

LABEL = "research.hermes.task"
REPOSITORY = "localhost/hermes-task"
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
    owner: str
    """The process that this belongs to."""


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
        sandbox = cls(settings, plan, f"hermes-task-{new_id().lower()}", supervisor)
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

    async def commit(self, image: str) -> None:
        """Keeps the files as an image. End its processes before: they could still write."""
        change = f"LABEL {LABEL}={self._plan.owner}"
        await call_engine(self._engine, "commit", "--change", change, self._name, image)


def task_argv(plan: ContainerPlan, settings: SandboxSettings, name: str) -> list[str]:
    """Starts the container and stays attached to it. The image's entry point runs, as it does in Harbor."""
    argv = [plan.engine, "run", "--interactive", "--rm", "--init", "--name", name]
    argv += ["--label", f"{LABEL}={plan.owner}", "--network", container_network(settings)]
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


def labelled(engine: str, kind: str) -> dict[str, str]:
    """The containers (`ps`) or images (`images`) of tasks: their ids, and the processes they belong to."""
    everything = ["--all"] if kind == "ps" else []
    listing = _output([engine, kind, *everything, "--no-trunc", "--quiet", "--filter", f"label={LABEL}"])
    label = f'{{{{index .Config.Labels "{LABEL}"}}}}'
    owners = {name: _output([engine, "inspect", "--format", label, name]) for name in (listing or "").split()}
    return {name: owner for name, owner in owners.items() if owner is not None}


def has_containers(engine: str, image: str) -> bool:
    """Whether any container, running or not, was made of the image with this id."""
    # One by one: podman 4.3 finds no container by `--filter ancestor` with an image's id.
    containers = (_output([engine, "ps", "--all", "--quiet", "--no-trunc"]) or "").split()
    inspect = [engine, "inspect", "--type", "container", "--format", "{{.Image}}"]
    images = (_output([*inspect, container]) or "" for container in containers)
    return image.removeprefix("sha256:") in (name.removeprefix("sha256:") for name in images)


def remove(engine: str, kind: str, name: str) -> None:
    """Removes a container (`ps`) or an image (`images`)."""
    _output([engine, "rm" if kind == "ps" else "rmi", "--force", name])


def _output(words: Sequence[str]) -> str | None:
    """The engine's output; None: it failed."""
    ended = subprocess.run(
        words, env=client_env(), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    return ended.stdout.strip() if ended.returncode == 0 else None
