"""Opens the network of a sandbox: the Hermes side of `attach`.

The tunnel is a command of a keeper outside the sandbox, so it ends with Hermes, however Hermes ends.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import json
import os
from typing import TYPE_CHECKING

from hermes.errors import SandboxError
from hermes.sandbox.guards.bare_python import bare_python
from hermes.sandbox.network.attach import READY
from hermes.sandbox.network.plan import (
    FIX,
    RoutePlan,
    Tunnel,
    installed_tunnels,
    read_own_addresses,
    route_plan,
)
from hermes.sandbox.supervisor import Launch, SandboxSupervisor

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings

_ATTACH = "exec(compile(open(3).read(), 'attach', 'exec'))"
_START_TIMEOUT_S = 60.0


def check_tunnels() -> None:
    """SandboxError if this machine has no program that can be a tunnel."""
    if not installed_tunnels(root=os.geteuid() == 0):
        raise SandboxError(
            "sandbox.network needs a network namespace with a tunnel, and neither pasta nor slirp4netns is "
            "installed.",
            FIX,
        )


async def open_tunnel(settings: SandboxSettings, pid: int) -> SandboxSupervisor:
    """Joins the namespace of the process to the outside; what is returned ends the tunnel when closed."""
    check_tunnels()
    plan = route_plan(settings.network_allow, read_own_addresses())
    supervisor = await SandboxSupervisor.open()
    reasons = []
    try:
        for tunnel in installed_tunnels(root=os.geteuid() == 0):
            reason = await _try(supervisor, tunnel, plan, pid)
            if reason is None:
                return supervisor
            reasons.append(f"{tunnel.name}: {reason}")
    except BaseException:
        await supervisor.close()
        raise
    await supervisor.close()
    raise SandboxError(f"no tunnel to the network works on this machine: {'; '.join(reasons)}", FIX)


async def _try(supervisor: SandboxSupervisor, tunnel: Tunnel, plan: RoutePlan, pid: int) -> str | None:
    """None if the tunnel works, else what it printed."""
    request = json.dumps({"pid": pid, "tunnel": tunnel.argv, "routes": plan.to_json()})
    script = importlib.resources.files("hermes.sandbox.network").joinpath("attach.py").read_bytes()
    argv = [bare_python().executable, "-I", "-S", "-c", _ATTACH, request]
    environment = {"LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    launch = Launch(argv, tunnel.name, "/", environment, attached=script)
    process = await supervisor.start(launch, stdin=False)
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while READY not in process.output().split() and process.exit_code is None:
                await process.wait(0.02)
    except TimeoutError:
        await process.kill()
        return "it did not become ready"
    if READY in process.output().split() and process.exit_code is None:
        return None
    return " ".join(process.output().split())[-300:] or "it ended without a message"
