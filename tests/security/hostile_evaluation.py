"""What a text could do if it ran as a program in the process that evaluates it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

STATE = {"patched": False}
PREPARED: list[str] = []


def patch_the_module() -> bool:
    STATE["patched"] = True
    sys.modules["json"].dumps = lambda *_, **__: "{}"  # type: ignore[assignment]
    return True


def is_patched() -> bool:
    return STATE["patched"]


def prepare(name: str) -> None:
    PREPARED.append(name)


def prepared() -> list[str]:
    return PREPARED


def attempts(file: str, secret: str) -> dict[str, str]:
    """The result of each attempt: "refused" or what was achieved."""
    outcomes = {}
    for name, attempt in {
        "program": lambda: subprocess.run(["/bin/true"], check=True),
        "fork": os.fork,
        "thread": _thread,
        "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "unix socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        "write": lambda: Path(file).write_text("x"),
        "append": lambda: os.open(file, os.O_APPEND | os.O_WRONLY | os.O_CREAT),
        "delete": lambda: Path(__file__).unlink(),
        "make": lambda: Path(file).mkdir(),
        "link": lambda: Path(file).symlink_to("/"),
        "mode": lambda: Path(__file__).chmod(0o777),
        "kill": lambda: os.kill(os.getppid(), signal.SIGKILL),
        "signal group": lambda: os.killpg(0, signal.SIGKILL),
        "memory of the parent": lambda: os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR),
        "limits": _raise_limits,
        "secret": lambda: Path(secret).read_text(),
        "environment": _secret_variables,
    }.items():
        try:
            value = attempt()
            outcomes[name] = f"achieved {value!r}"
        except (OSError, RuntimeError, ValueError) as error:
            outcomes[name] = "refused" if not isinstance(error, FileNotFoundError) else "not there"
    return outcomes


def _thread() -> None:
    import threading

    thread = threading.Thread(target=print)
    thread.start()
    thread.join()


def _raise_limits() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _secret_variables() -> str:
    environments = [dict(os.environ)]
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                text = (process / "environ").read_text()
                environments.append(dict(part.partition("=")[::2] for part in text.split("\0")))
    seen = [name for environment in environments for name in environment if "KEY" in name]
    if not seen:
        raise ValueError("none")
    return str(seen)
