"""Command lines for docker and podman, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.errors import SandboxError
from hermes.sandbox.network.plan import has_own_network
from hermes.sandbox.workspace import WORKSPACE

if TYPE_CHECKING:
    from hermes.config.settings import SandboxSettings

LABEL = "research.hermes.sandbox"
"""Label of every container; `docker ps --filter label=…` lists them."""
MARK = "HERMES_COMMAND"
"""Variable that identifies the processes of one command in the container."""
READY = "ready"
_MAX_CPUS = 2
_MAIN = f"echo {READY}; exec cat > /dev/null"
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
for pass in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  alive=
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

Of processes that started in the same clock tick it is the one with the lowest number.
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
) -> list[str]:
    """Starts the container and stays attached to it. `rootless`: Hermes itself does not run as root.

    `read_only`: paths in the workspace that stay as they are.
    """
    memory = f"{settings.memory_mb}m"
    argv = [engine, "run", "--interactive", "--rm", "--init", "--name", name, "--label", LABEL]
    argv += ["--network", _network(settings)]
    argv += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    argv += ["--read-only", "--tmpfs", f"/tmp:rw,exec,nosuid,nodev,size={memory}"]
    argv += ["--pids-limit", str(settings.max_processes), "--memory", memory, "--memory-swap", memory]
    argv += ["--cpus", str(_MAX_CPUS), "--ulimit", f"cpu={settings.cpu_s}", "--ulimit", "core=0"]
    argv += ["--user", f"{user[0]}:{user[1]}", "--mount", f"type=bind,source={workspace},target={WORKSPACE}"]
    for path in read_only:
        if any(char in path for char in ',"\n'):  # they would end the value of an option
            continue
        target = f"{WORKSPACE}/{path}"
        argv += ["--mount", f"type=bind,source={workspace / path},target={target},readonly"]
    argv += ["--workdir", WORKSPACE, "--env", f"HOME={WORKSPACE}", "--env", "LANG=C.UTF-8"]
    if Path(engine).name == "podman" and rootless:
        argv += ["--userns", f"keep-id:uid={user[0]},gid={user[1]}"]
    return [*argv, "--entrypoint", "/bin/sh", settings.image, "-c", _MAIN]


def _network(settings: SandboxSettings) -> str:
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


def shell_argv(command: str) -> list[str]:
    """The command for bash if the image has it, else for sh."""
    return ["/bin/sh", "-c", _SHELL, "sh", command]


def kill_argv(engine: str, name: str, mark: str) -> list[str]:
    """Kills every process of a command, which ending the client does not."""
    return [engine, "exec", name, "/bin/sh", "-c", _KILL, "sh", mark]


def kill_all_argv(engine: str, name: str) -> list[str]:
    """Kills whatever any command has left running, whatever it calls itself."""
    return [engine, "exec", name, "/bin/sh", "-c", KILL_ALL]
