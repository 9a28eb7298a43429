"""What `hermes doctor` says about the sandbox: its network and its memory limit."""

from __future__ import annotations

import os

from hermes.config.doctor.check import Check, CheckStatus
from hermes.sandbox.guards.memory_group import missing_reason
from hermes.sandbox.network.plan import installed_tunnels


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
