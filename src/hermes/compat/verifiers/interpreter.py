"""The interpreter that has verifiers: where it is, and how it is made.

It is a virtual environment of its own: verifiers 0.4 needs openai below 3, and Hermes needs 3 or newer.
`uv` is installed beside it: harnesses of verifiers start their programs with it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hermes.config.paths import home
from hermes.errors import HermesError, UsageError

VERSION = "0.4.0"
"""The version that is installed unless another one is named; tests run it."""
MIN_PYTHON = (3, 11)
COMMAND = "hermes env verifiers install"


def default_folder() -> Path:
    return home() / "verifiers" / ".venv"


def default_python() -> Path:
    return default_folder() / "bin" / "python"


def install_hint() -> str:
    return f"Make one with '{COMMAND}', or name another with --env.verifiers_python PATH."


def install(folder: Path, version: str, packages: tuple[str, ...]) -> Path:
    """Makes the environment, or adds packages to it; its interpreter. HermesError: pip or venv failed."""
    if sys.version_info < MIN_PYTHON:
        raise UsageError("verifiers needs Python 3.11 or newer.", "Run Hermes with a newer Python.")
    python = folder / "bin" / "python"
    if not python.is_file():
        _run([sys.executable, "-P", "-m", "venv", str(folder)], "the environment could not be made")
    requirements = [f"verifiers=={version}", "uv", *packages]
    _run(
        [str(python), "-P", "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *requirements],
        f"pip could not install {' '.join(requirements)}",
    )
    return python


def _run(command: list[str], problem: str) -> None:
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        lines = (process.stderr or process.stdout).strip().splitlines()
        reason = next(
            (line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else ""
        )
        raise HermesError(f"{problem}: {reason}", "Check the network and the name of the package.")
