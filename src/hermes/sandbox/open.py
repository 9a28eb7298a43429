"""Chooses and opens a sandbox.

`auto` selects `local` if a user is present, who approves each command; otherwise the first isolating back end
that works, bubblewrap before docker. If none works it is an error: unattended commands never run without
isolation. Further back ends are plug-ins: an entry point in the group `hermes.sandboxes` that names an `async
def open(settings: SandboxSettings, workspace: Workspace) -> Sandbox`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.config.doctor.check import Check, CheckStatus
from hermes.errors import SandboxError, UsageError
from hermes.sandbox.guards.memory_group import missing_reason
from hermes.sandbox.network.plan import installed_tunnels
from hermes.sandbox.workspace import Workspace

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings
    from hermes.sandbox.base import Sandbox

PLUGINS = "hermes.sandboxes"
BUILT_IN = ("local", "bubblewrap", "docker")
Open = Callable[["SandboxSettings", Workspace], Awaitable["Sandbox"]]


async def open_sandbox(
    settings: SandboxSettings,
    *,
    interactive: bool,
    workspace: Path | None = None,
    workspaces: Path | None = None,
    workspace_name: str | None = None,
    shown_paths: Sequence[str] = (),
) -> Sandbox:
    """Opens the configured back end in `workspace`, or in a fresh one that is removed when it is closed.

    Fresh workspaces are created in `workspaces`, or in the temporary directory. `workspace_name`: see
    `Workspace.create`; `shown_paths`: see `Workspace`.
    """
    name = settings.backend if settings.backend != "auto" else await _choose(interactive)
    open_backend = _opener(name)
    directory = Workspace.existing(workspace) if workspace else Workspace.create(workspaces, workspace_name)
    directory = replace(directory, shown_paths=tuple(shown_paths))
    try:
        return await open_backend(settings, directory)
    except BaseException:
        directory.remove()
        raise


async def _choose(interactive: bool) -> str:
    if interactive:
        return "local"
    reasons: list[str] = []
    for name in ("bubblewrap", "docker"):
        reason = await asyncio.to_thread(unusable_reason, name)
        if reason is None:
            return name
        reasons.append(reason)
    raise SandboxError(
        f"no isolating sandbox works on this machine: {'; '.join(reasons)}.",
        "Install bubblewrap (apt install bubblewrap) or docker; or pass --sandbox local, which runs commands "
        "on this machine without isolation.",
    )


@cache
def unusable_reason(backend: str) -> str | None:
    """None if the back end works on this machine, else the reason; tried once per process."""
    if backend == "bubblewrap":
        from hermes.sandbox import bubblewrap

        return bubblewrap.unusable_reason()
    if backend == "docker":
        from hermes.sandbox import docker

        return docker.unusable_reason()
    return None if backend in sandbox_names() else f"there is no sandbox '{backend}'"


def sandbox_names() -> list[str]:
    """The built-in back ends, then the plug-ins."""
    return [*BUILT_IN, *sorted(point.name for point in entry_points(group=PLUGINS))]


def _opener(name: str) -> Open:
    if name == "local":
        from hermes.sandbox.local import LocalSandbox

        return LocalSandbox.open
    if name == "bubblewrap":
        from hermes.sandbox.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox.open
    if name == "docker":
        from hermes.sandbox.docker import DockerSandbox

        return DockerSandbox.open
    for point in entry_points(group=PLUGINS, name=name):
        plugin: Open = point.load()
        return plugin
    raise UsageError(
        f"there is no sandbox '{name}'; there are: {', '.join(sandbox_names())}.",
        "Others (ssh, modal, singularity) are plug-ins: packages with an entry point in hermes.sandboxes.",
    )


def sandbox_checks() -> list[Check]:
    return [_network(), _memory()]


def _network() -> Check:
    gives = "sandbox.network: public addresses for commands, without this machine and its private networks"
    names = [tunnel.name for tunnel in installed_tunnels(root=os.geteuid() == 0)]
    if not names:
        problem = "neither pasta nor slirp4netns is installed; sandbox.network is refused"
        return Check("sandbox network", CheckStatus.MISSING, problem, gives, "apt install passt slirp4netns")
    return Check("sandbox network", CheckStatus.OK, f"{' and '.join(names)}, for sandbox.network")


def _memory() -> Check:
    gives = "one memory limit for all commands of a sandbox, shared memory and /tmp included"
    reason = missing_reason()
    if reason is not None:
        fix = "systemd-run --user --scope hermes …"
        return Check("sandbox memory", CheckStatus.MISSING, f"limits are per process: {reason}", gives, fix)
    return Check("sandbox memory", CheckStatus.OK, "a control group limits all commands together")
