"""Virtual environments for packages that do not live beside Hermes: made once, under .compat, and reused."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

VENVS = Path(__file__).parents[2] / ".compat" / "venvs"
_UNREACHABLE = (
    "No matching distribution",
    "Max retries",
    "timed out",
    "Temporary failure",
    "Connection",
    "Failed to fetch",
    "dns error",
)


def venv_python(name: str, *requirements: str) -> Path:
    """The interpreter of the environment `name`; skips the test where the registry cannot be reached."""
    folder = VENVS / name
    ready, python = folder / ".ready", folder / "bin" / "python"
    VENVS.mkdir(parents=True, exist_ok=True)
    with (VENVS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.is_file() and ready.read_text() == "\n".join(requirements):
            return python
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        _install(python, *requirements)
        ready.write_text("\n".join(requirements))
    return python


def _install(python: Path, *requirements: str) -> None:
    """By uv where it is installed, which takes a tenth of pip's time."""
    if uv := shutil.which("uv"):
        _run([uv, "pip", "install", "--quiet", "--python", str(python), *requirements])
    else:
        pip(python, "install", *requirements)


def pip(python: Path, *arguments: str) -> None:
    _run([str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments])


def _run(command: list[str]) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode and any(sign in process.stderr for sign in _UNREACHABLE):
        pytest.skip(f"the registry cannot be reached: {process.stderr.strip().splitlines()[-1]}")
    assert process.returncode == 0, process.stderr
