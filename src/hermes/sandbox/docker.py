"""Runs commands in a container with the docker or podman command line.

One container per sandbox, one `exec` per command. No network unless allowed, no capabilities, no new
privileges, a read-only root file system with the workspace and a private /tmp as writable directories, an
ordinary user, and hard limits on the memory, processes and CPUs of the whole container. The container ends
with the sandbox, and also if Hermes is killed: its main process reads from a client that ends with Hermes.
Closing the sandbox also removes it. What podman keeps of one whose Hermes was killed, an entry without
processes, is removed by: podman container prune --filter label=research.hermes.sandbox

A command's processes are identified by a variable in their environment. At a time-out all processes with it
are killed; one that has cleared its environment runs until the container ends, or until `kill_all`, which is
called before a rollout is graded. Processes that a command
leaves running when it exits also run until then, unlike in the other back ends.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import new_id
from hermes.errors import SandboxError
from hermes.sandbox.base import BackgroundProcess, CommandResult
from hermes.sandbox.isolated import IsolatedSandbox
from hermes.sandbox.network.plan import has_own_network
from hermes.sandbox.process import DEFAULT_BYTES, Process
from hermes.sandbox.supervisor import Launch, ProcessResult, SandboxSupervisor
from hermes.sandbox.workspace import WORKSPACE, Mount, Workspace

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings

FIX = (
    "Install docker or podman and start its engine (systemctl start docker), then check with: docker version"
)
_START_TIMEOUT_S = 600.0
"""The image may have to be pulled first."""
_PROBE_TIMEOUT_S = 20
_KILL_TIMEOUT_S = 10.0
_REMOVE_TIMEOUT_S = 60.0


class DockerSandbox(IsolatedSandbox):
    backend = "docker"

    def __init__(
        self,
        settings: SandboxSettings,
        workspace: Workspace,
        engine: str,
        name: str,
        supervisor: SandboxSupervisor,
    ) -> None:
        super().__init__(settings, workspace)
        self._engine = engine
        self._name = name
        self._supervisor = supervisor
        self._container: Process | None = None

    @classmethod
    async def open(cls, settings: SandboxSettings, workspace: Workspace) -> DockerSandbox:
        engine = await asyncio.to_thread(find_engine)
        workspace.drop_root()
        supervisor = await SandboxSupervisor.open()
        sandbox = cls(settings, workspace, engine, f"hermes-{new_id().lower()}", supervisor)
        await sandbox._start_or_remove()
        return sandbox

    async def _start_or_remove(self) -> None:
        """Nothing is left of a container that does not start."""
        try:
            await self._start_container()
        except BaseException:
            await self._supervisor.close()
            await asyncio.to_thread(self._remove_container)
            raise

    def _start_argv(self) -> list[str]:
        return run_argv(
            self._engine,
            self._settings,
            self._workspace.path,
            self._name,
            self._owner,
            rootless=os.geteuid() != 0,
            read_only=self._repositories,
            shown_paths=self._workspace.shown_paths,
            mounts=self._workspace.mounts,
            variables=self._workspace.variables,
        )

    def _kill_all_argv(self) -> list[str]:
        return kill_all_argv(self._engine, self._name)

    async def _start_container(self) -> None:
        argv = self._start_argv()
        container = await self._supervisor.start(_launch(argv, "container"), stdin=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_TIMEOUT_S):
                while READY not in container.output().split() and container.exit_code is None:
                    await container.wait(0.05)
        if READY not in container.output().split():
            raise SandboxError(f"the container cannot be started: {container.output().strip()}", FIX)
        self._container = container
        await self._check_memory_limit()

    async def _check_memory_limit(self) -> None:
        """SandboxError: the engine has ignored the limits, as podman does without root and control groups."""
        reading = ["/bin/sh", "-c", f"cat {_LIMITS} 2> /dev/null"]
        output = (await self._run_argv(reading, None, 1000)).capture.text().split()
        limits = [int(word) if word.isdecimal() else math.inf for word in output]
        if limits and min(limits) > self._settings.memory_mb << 20:
            raise SandboxError(
                f"{Path(self._engine).name} limits neither memory nor processes of its containers here",
                "Without root it needs control groups of version 2. Use bubblewrap, or run Hermes as root.",
            )

    async def run(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> CommandResult:
        async with self._disk.watched():
            directory = await self._directory(cwd)
            argv = shell_argv(command, may_write=not self._disk.is_full)
            ended = await self._run(argv, timeout_s, directory, env, stdin)
        return self._disk.explain(ended.result())

    async def start(self, command: str, *, cwd: str | None = None) -> BackgroundProcess:
        self._disk.watch()
        mark = new_id()
        argv = self._exec(shell_argv(command), mark, await self._directory(cwd), {}, stdin=True)
        client = await self._supervisor.start(_launch(argv, command), stdin=True)
        return _ContainerProcess(client, lambda: self._kill(mark))

    async def kill_all(self) -> None:
        """SandboxError if something is still alive: what it could do to the files would be graded."""
        self._check_alive()
        launch = _launch(self._kill_all_argv(), "kill")
        result = await self._supervisor.run(launch, timeout_s=_KILL_TIMEOUT_S)
        self._check_alive()
        if result.exit_code:
            raise SandboxError(f"processes in the container cannot be ended: {result.capture.text().strip()}")

    async def close(self) -> None:
        await self._supervisor.close()
        await asyncio.to_thread(self._remove_container)
        if not self._workspace.fresh:
            await asyncio.to_thread(self._workspace.drop_set_uid)
        await self._leave_workspace()

    def _remove_container(self) -> None:
        """Docker has mostly removed it by now; podman's `--rm` is work of a process that has just ended."""
        removal = [self._engine, "rm", "--force", self._name]
        try:
            subprocess.run(
                removal, env=client_env(), capture_output=True, timeout=_REMOVE_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise SandboxError(f"the container {self._name} cannot be removed: {error}", FIX) from error

    async def _run(
        self,
        argv: Sequence[str],
        timeout_s: float | None,
        cwd: str,
        env: Mapping[str, str] | None,
        stdin: bytes | None,
        max_output_bytes: int = DEFAULT_BYTES,
    ) -> ProcessResult:
        mark = new_id()
        wrapped = self._exec(argv, mark, cwd, env or {}, stdin=stdin is not None)
        launch = _launch(wrapped, argv[-1], max_output_bytes)
        ended = False
        try:
            result = await self._supervisor.run(launch, timeout_s=self._limit_s(timeout_s), stdin=stdin)
            ended = not result.timed_out
        finally:
            if not ended:
                await asyncio.shield(self._kill(mark))
        self._check_alive()
        return result

    async def _run_argv(
        self, argv: Sequence[str], stdin: bytes | None, max_output_bytes: int
    ) -> ProcessResult:
        return await self._run(argv, None, WORKSPACE, None, stdin, max_output_bytes)

    def _exec(
        self, argv: Sequence[str], mark: str, cwd: str, env: Mapping[str, str], *, stdin: bool
    ) -> list[str]:
        self._check_alive()
        return exec_argv(self._engine, self._name, argv, cwd=cwd, env=env, mark=mark, stdin=stdin)

    async def _kill(self, mark: str) -> None:
        launch = _launch(kill_argv(self._engine, self._name, mark), "kill")
        await self._supervisor.run(launch, timeout_s=_KILL_TIMEOUT_S)

    def _check_alive(self) -> None:
        if self._container is None or self._container.exit_code is not None:
            output = self._container.output().strip().removeprefix(READY) if self._container else ""
            raise SandboxError(f"the container has ended. {output}".strip(), "Open a new sandbox.")


class _ContainerProcess:
    """A command in the container; ending its client does not end it."""

    def __init__(self, client: Process, kill: Callable[[], Awaitable[None]]) -> None:
        self._client = client
        self._kill = kill

    @property
    def id(self) -> str:
        return self._client.id

    @property
    def command(self) -> str:
        return self._client.command

    @property
    def exit_code(self) -> int | None:
        return self._client.exit_code

    def output(self) -> str:
        return self._client.output()

    async def write(self, text: str) -> None:
        await self._client.write(text)

    async def wait(self, timeout_s: float) -> int | None:
        return await self._client.wait(timeout_s)

    async def kill(self) -> None:
        await self._kill()
        await self._client.kill()


def find_engine() -> str:
    """The first of docker and podman with a running engine; a client may be installed without an engine."""
    programs = [program for name in ("docker", "podman") if (program := shutil.which(name))]
    if not programs:
        raise SandboxError("neither docker nor podman is installed.", FIX)
    errors = []
    for program in programs:
        error = _engine_error(program)
        if error is None:
            return program
        errors.append(error)
    raise SandboxError(f"no container engine answers: {'; '.join(errors)}", FIX)


def unusable_reason() -> str | None:
    """None if an engine is running, else the errors of the clients."""
    try:
        find_engine()
    except SandboxError as error:
        return error.message
    return None


def _engine_error(program: str) -> str | None:
    try:
        version = subprocess.run(
            [program, "version"],
            env=client_env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be run: {error}"
    return None if version.returncode == 0 else version.stderr.strip()


def _launch(argv: Sequence[str], command: str, max_output_bytes: int = DEFAULT_BYTES) -> Launch:
    return Launch(argv, command, "/", client_env(), max_output_bytes=max_output_bytes)


def client_env() -> dict[str, str]:
    """Variables that the client needs to find its engine; they are not passed to the container."""
    prefixes = ("HOME", "PATH", "TMPDIR", "XDG_", "DOCKER_", "CONTAINER", "DBUS_SESSION_BUS_ADDRESS")
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


LABEL = "research.hermes.sandbox"
"""Label of every container; `docker ps --filter label=…` lists them."""
MARK = "HERMES_COMMAND"
"""Variable that identifies the processes of one command in the container."""
READY = "ready"
_MAX_CPUS = 2
_LIMITS = "/sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes"
"""The container's own memory limit, in control groups of version 2 and 1."""
MAIN = f"echo {READY}; exec cat > /dev/null"
"""Ends when its input ends, which ends with the client that started it, which ends with Hermes."""
_SHELL = 'if [ -x /bin/bash ]; then exec /bin/bash -c "$1"; else exec /bin/sh -c "$1"; fi'
_KILL = f"""
for pass in 1 2 3; do
  for process in /proc/[0-9]*; do
    tr '\\0' '\\n' < "$process/environ" 2> /dev/null | grep -qxF "{MARK}=$1" || continue
    kill -KILL "${{process#/proc/}}"
  done
done
"""


KILL_ALL = """
main= ; oldest=
for process in /proc/[0-9]*; do
  pid=${process#/proc/}
  [ "$pid" = 1 ] || [ "$pid" = "$$" ] && continue
  read -r stat 2> /dev/null < "$process/stat" || continue
  set -- ${stat##*) }
  [ "${20:-x}" -ge 0 ] 2> /dev/null || continue
  if [ -z "$oldest" ] || [ "${20}" -lt "$oldest" ] ||
    { [ "${20}" -eq "$oldest" ] && [ "$pid" -lt "$main" ]; }; then oldest=${20} main=$pid; fi
done
pass=0
while [ "$pass" -lt 60 ]; do
  pass=$((pass + 1)) ; alive=
  [ "$pass" -gt 20 ] && sleep 0.1 2> /dev/null
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    [ "$pid" = 1 ] || [ "$pid" = "$$" ] || [ "$pid" = "$main" ] && continue
    read -r stat 2> /dev/null < "$process/stat" || continue
    case "${stat##*) }" in Z*) continue ;; esac
    kill -KILL "$pid" 2> /dev/null && alive=yes
  done
  [ -z "$alive" ] && exit 0
done
exit 1
"""
"""Kills everything but the container's first processes: init, and the one that has run longest.

Of processes that started in the same clock tick it is the one with the lowest number. After twenty passes it
waits between them: on a busy machine those that were killed need a while to end.
"""


def run_argv(
    engine: str,
    settings: SandboxSettings,
    workspace: Path,
    name: str,
    user: tuple[int, int],
    *,
    rootless: bool,
    read_only: Sequence[str] = (),
    shown_paths: Sequence[str] = (),
    mounts: Sequence[Mount] = (),
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """Starts the container and stays attached to it. `rootless`: Hermes itself does not run as root.

    `read_only`: paths in the workspace that stay as they are.
    """
    memory = f"{settings.memory_mb}m"
    argv = [engine, "run", "--interactive", "--rm", "--init", "--name", name, "--label", LABEL]
    argv += ["--network", container_network(settings)]
    argv += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    argv += ["--read-only", "--tmpfs", f"/tmp:rw,exec,nosuid,nodev,size={memory}"]
    argv += limit_argv(settings, _MAX_CPUS)
    argv += ["--user", f"{user[0]}:{user[1]}", "--mount", f"type=bind,source={workspace},target={WORKSPACE}"]
    for path in read_only:
        if any(char in path for char in ',"\n'):  # they would end the value of an option
            continue
        target = f"{WORKSPACE}/{path}"
        argv += ["--mount", f"type=bind,source={workspace / path},target={target},readonly"]
    for path in shown_paths:
        argv += ["--mount", f"type=bind,source={path},target={path},readonly"]
    argv += mount_argv(mounts)
    for variable, value in (variables or {}).items():
        argv += ["--env", f"{variable}={value}"]
    argv += ["--workdir", WORKSPACE, "--env", f"HOME={WORKSPACE}", "--env", "LANG=C.UTF-8"]
    if Path(engine).name == "podman" and rootless:
        argv += ["--userns", f"keep-id:uid={user[0]},gid={user[1]}"]
    return [*argv, "--entrypoint", "/bin/sh", settings.image, "-c", MAIN]


def limit_argv(settings: SandboxSettings, cpus: int) -> list[str]:
    memory = f"{settings.memory_mb}m"
    argv = ["--pids-limit", str(settings.max_processes), "--memory", memory, "--memory-swap", memory]
    return [*argv, "--cpus", str(cpus), "--ulimit", f"cpu={settings.cpu_s}", "--ulimit", "core=0"]


def mount_argv(mounts: Sequence[Mount]) -> list[str]:
    argv: list[str] = []
    for mount in mounts:
        read_only = "" if mount.writable else ",readonly"
        argv += ["--mount", f"type=bind,source={mount.source},target={mount.target}{read_only}"]
    return argv


def container_network(settings: SandboxSettings) -> str:
    """The engine's bridge only where the settings name what it reaches."""
    if has_own_network(settings):
        raise SandboxError(
            "sandbox.network: a container's bridge reaches the private networks of this machine too.",
            "Use bubblewrap with passt or slirp4netns; or permit that by sandbox.network_allow: [host].",
        )
    return "bridge" if settings.network else "none"


def exec_argv(
    engine: str, name: str, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], mark: str, stdin: bool
) -> list[str]:
    """Runs a program in the container; `mark` identifies its processes."""
    options = ["--interactive"] if stdin else []
    for variable, value in {**env, MARK: mark}.items():
        options += ["--env", f"{variable}={value}"]
    return [engine, "exec", *options, "--workdir", cwd, name, *argv]


def shell_argv(command: str, *, may_write: bool = True) -> list[str]:
    """The command for bash if the image has it, else for sh."""
    return ["/bin/sh", "-c", _SHELL if may_write else f"ulimit -f 0; {_SHELL}", "sh", command]


def kill_argv(engine: str, name: str, mark: str) -> list[str]:
    """Kills every process of a command, which ending the client does not."""
    return [engine, "exec", name, "/bin/sh", "-c", _KILL, "sh", mark]


def kill_all_argv(engine: str, name: str, *, as_root: bool = False) -> list[str]:
    """Kills whatever any command has left running, whatever it calls itself."""
    return [engine, "exec", *(["--user", "0"] if as_root else []), name, "/bin/sh", "-c", KILL_ALL]
