"""Runs commands in Linux namespaces with bubblewrap: unprivileged, a few milliseconds each.

Covered. A command sees the system's programs and libraries (read-only), the workspace and a private /tmp; not
the home directory, HERMES_HOME, keys, sockets or other processes of the host. Its environment is synthetic,
its user has no capabilities and cannot create user namespaces, it has a session keyring of its own, no
terminal and, unless allowed, no network except a private loopback. A system call filter (`seccomp`; x86_64
and aarch64) refuses keyrings, tracing, mounts, BPF, io_uring, foreign address families, set-uid and set-gid
modes, and shared memory that no limit counts. Nothing outside the workspace and /tmp can be written. When a
command ends, is killed or Hermes dies, its whole process namespace ends with it; /tmp is removed when the
sandbox is closed. An allowed network is one of its own (`network.plan`): public addresses, none of this
machine or of a private network unless `sandbox.network_allow` names it; `host` in there shares the host's own
network, the servers on its loopback included.

In a workspace that was given, what git keeps in `.git` is read-only, and a repository that a command creates
loses its hooks and every setting that can run a program when the sandbox is closed (`git_guard`).

Limits are per process for memory, CPU time and file size, and for the whole sandbox for the number of
processes and the sizes of /tmp and /dev/shm. The memory of all commands together, shared memory and /tmp
included, is limited where this user may make a control group (`guards.memory_group`), and the disk space of a
fresh workspace by looking at it (`guards.disk_limit`). Not limited: CPU share, and elsewhere the sum of
memory. Use docker to limit these.

Root. If Hermes runs as root, commands run as the owner of the workspace; a fresh workspace belongs to a user
who owns nothing else. In a workspace that belongs to root they run as root without capabilities, and the
number of processes is then not limited, since the kernel exempts root.

The kernel is shared with the host: a vulnerability in the kernel is one in the sandbox.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from hermes.errors import SandboxError
from hermes.sandbox.base import BackgroundProcess, CommandResult
from hermes.sandbox.bwrap_args import (
    Bwrap,
    MountLayout,
    command_argv,
    host_layout,
    outer_argv,
)
from hermes.sandbox.guards import seccomp
from hermes.sandbox.guards.memory_group import MemoryGroup, create_memory_group
from hermes.sandbox.isolated import IsolatedSandbox
from hermes.sandbox.network import plan, tunnel
from hermes.sandbox.process import DEFAULT_BYTES
from hermes.sandbox.supervisor import Launch, LazySupervisor, ProcessResult, Rlimit, SandboxSupervisor
from hermes.sandbox.workspace import WORKSPACE, Workspace

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings

FIX = "Install bubblewrap (apt install bubblewrap), and see that unprivileged user namespaces are allowed."
_PROBE_TIMEOUT_S = 20
_MAX_FILE_BYTES = 4 << 30
_MEGABYTE = 1 << 20
_COUNTS_PER_NAMESPACE = (5, 14)
"""First Linux version that counts processes per user namespace; earlier ones count all of a user's."""


class BubblewrapSandbox(IsolatedSandbox):
    backend = "bubblewrap"

    def __init__(
        self,
        settings: SandboxSettings,
        workspace: Workspace,
        bwrap: Bwrap,
        layout: MountLayout,
    ) -> None:
        super().__init__(settings, workspace)
        self._bwrap = bwrap
        self._layout = layout
        self._supervisor = LazySupervisor(self._open_supervisor)
        self._tunnel: SandboxSupervisor | None = None
        self._group: MemoryGroup | None = None
        self._rlimits = rlimits(settings, os.uname().release)
        machine = seccomp.machine()
        self._filter = b"" if machine is None else seccomp.sandbox_filter(machine)
        self._shell = shutil.which("bash", path="/usr/bin:/bin") or "/bin/sh"

    @classmethod
    async def open(cls, settings: SandboxSettings, workspace: Workspace) -> BubblewrapSandbox:
        bwrap = find_bwrap()
        own_network = plan.has_own_network(settings)
        if own_network:
            tunnel.check_tunnels()
        layout = host_layout(
            shares_network=plan.shares_host(settings),
            resolver=plan.DNS if own_network else None,
            shown_paths=workspace.shown_paths,
        )
        workspace.drop_root()
        return cls(settings, workspace, bwrap, layout)

    async def _open_supervisor(self) -> SandboxSupervisor:
        with _memory_files(self._layout.files) as files:
            prefix = _outer_argv(
                self._bwrap,
                self._layout,
                self._workspace,
                files,
                shares_network=plan.shares_host(self._settings),
                tmp_bytes=self._settings.memory_mb * _MEGABYTE,
            )
            if self._group is None:
                self._group = create_memory_group(self._settings.memory_mb * _MEGABYTE)
            entrance = None if self._group is None else self._group.entrance
            try:
                supervisor = await SandboxSupervisor.open(prefix, tuple(files.values()), entrance)
            except SandboxError as error:
                raise SandboxError(error.message, FIX) from error
        if plan.has_own_network(self._settings):
            try:
                self._tunnel = await tunnel.open_tunnel(self._settings, supervisor.holder_pid)
            except BaseException:
                await supervisor.close()
                raise
        return supervisor

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
            launch = await self._shell_launch(command, cwd, env)
            ended = await self._supervisor.run(launch, timeout_s=self._limit_s(timeout_s), stdin=stdin)
        return self._disk.explain(ended.result())

    async def start(self, command: str, *, cwd: str | None = None) -> BackgroundProcess:
        self._disk.watch()
        return await self._supervisor.start(await self._shell_launch(command, cwd, None), stdin=True)

    async def kill_all(self) -> None:
        await self._supervisor.kill_all()  # a command's descendants end with it

    async def close(self) -> None:
        await self._supervisor.close()
        if self._tunnel is not None:
            await self._tunnel.close()
        if self._group is not None:
            await asyncio.to_thread(self._group.remove)
            self._group = None
        await self._leave_workspace()

    async def _run_argv(
        self, argv: Sequence[str], stdin: bytes | None, max_output_bytes: int
    ) -> ProcessResult:
        launch = self._launch(argv, argv[0], WORKSPACE, None, max_output_bytes)
        return await self._supervisor.run(launch, timeout_s=self._limit_s(None), stdin=stdin)

    async def _shell_launch(self, command: str, cwd: str | None, env: Mapping[str, str] | None) -> Launch:
        return self._launch((self._shell, "-c", command), command, await self._directory(cwd), env)

    def _launch(
        self,
        argv: Sequence[str],
        command: str,
        cwd: str,
        env: Mapping[str, str] | None,
        max_output_bytes: int = DEFAULT_BYTES,
    ) -> Launch:
        inner_env = {**environment(self._layout), **self._workspace.variables, **(env or {})}
        shm_bytes = self._settings.memory_mb * _MEGABYTE
        wrapped = command_argv(
            self._bwrap,
            self._layout,
            argv,
            cwd=cwd,
            env=inner_env,
            shm_bytes=shm_bytes,
            filtered=bool(self._filter),
            read_only=self._repositories,
            mounts=self._workspace.mounts,
        )
        limits = [*self._rlimits, ("RLIMIT_FSIZE", 0, 0)] if self._disk.is_full else self._rlimits
        return Launch(wrapped, command, "/", {}, limits, max_output_bytes, self._filter)


def environment(layout: MountLayout) -> dict[str, str]:
    return {
        "PATH": layout.path,
        "HOME": WORKSPACE,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
    }


def rlimits(settings: SandboxSettings, kernel: str) -> list[Rlimit]:
    """Limits of a command's first process; its descendants inherit them."""
    memory = settings.memory_mb * _MEGABYTE
    limits: list[Rlimit] = [
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_CPU", settings.cpu_s, settings.cpu_s + 1),
        # Not RLIMIT_AS: some programs reserve far more address space than they use.
        ("RLIMIT_DATA", memory, memory),
        ("RLIMIT_FSIZE", _MAX_FILE_BYTES, _MAX_FILE_BYTES),
    ]
    version = tuple(int(part) for part in re.findall(r"\d+", kernel)[:2])
    if version >= _COUNTS_PER_NAMESPACE:
        limits.append(("RLIMIT_NPROC", settings.max_processes, settings.max_processes))
    return limits


@cache
def find_bwrap() -> Bwrap:
    program = shutil.which("bwrap")
    if program is None:
        raise SandboxError("bubblewrap is not installed.", FIX)
    usage = subprocess.run(
        [program, "--help"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
    )
    return Bwrap(program, frozenset(re.findall(r"--[a-z-]+", usage.stdout + usage.stderr)))


def unusable_reason() -> str | None:
    """None if a command runs here in bubblewrap, else the error of the attempt."""
    try:
        bwrap = find_bwrap()
    except SandboxError as error:
        return error.message
    workspace = Workspace.create()
    try:
        workspace.drop_root()
        layout = host_layout(shares_network=False)
        with _memory_files(layout.files) as files:
            outer = _outer_argv(bwrap, layout, workspace, files, shares_network=False, tmp_bytes=_MEGABYTE)
            inner = command_argv(bwrap, layout, ["/bin/true"], cwd="/", env={}, shm_bytes=_MEGABYTE)
            probe = subprocess.run(
                [*outer, *inner],
                env={},
                pass_fds=tuple(files.values()),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PROBE_TIMEOUT_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be tried: {error}"
    finally:
        workspace.remove()
    return None if probe.returncode == 0 else f"bubblewrap cannot make a sandbox: {probe.stderr.strip()}"


def _outer_argv(
    bwrap: Bwrap,
    layout: MountLayout,
    workspace: Workspace,
    files: Mapping[str, int],
    *,
    shares_network: bool,
    tmp_bytes: int,
) -> list[str]:
    owner = workspace.owner
    drop_to = owner if os.geteuid() == 0 and owner[0] != 0 else None
    return outer_argv(
        bwrap,
        layout,
        workspace.path,
        shares_network=shares_network,
        tmp_bytes=tmp_bytes,
        files=files,
        drop_to=drop_to,
        mounts=workspace.mounts,
    )


@contextmanager
def _memory_files(files: Mapping[str, bytes]) -> Iterator[dict[str, int]]:
    """The files as descriptors, which can be read once."""
    descriptors: dict[str, int] = {}
    try:
        for path, data in files.items():
            descriptors[path] = os.memfd_create(path)
            os.write(descriptors[path], data)
            os.lseek(descriptors[path], 0, os.SEEK_SET)
        yield descriptors
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
