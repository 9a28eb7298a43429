"""The real packages: verifiers in an interpreter of its own, and the examples of its source archive."""

from __future__ import annotations

import tarfile
from pathlib import Path

from hermes.compat.verifiers.interpreter import VERSION
from tests.compat.venvs import VENVS, pip, venv_python

CLASSIC_VERSION = "0.3.1"


def verifiers_python() -> Path:
    return venv_python("verifiers", f"verifiers=={VERSION}", "uv")


def classic_python() -> Path:
    """With the classic API: `load_environment` and environments such as SingleTurnEnv."""
    return venv_python("verifiers-classic", f"verifiers=={CLASSIC_VERSION}")


def examples() -> Path:
    """The folder with the examples of verifiers' own end-to-end tests: echo_v1, echo_tool_v1, duet_v1 …"""
    archive = VENVS / f"verifiers-{VERSION}.tar.gz"
    if not archive.is_file():
        python = venv_python("build", "hatchling", "hatch-vcs")
        pip(
            python,
            "download",
            "--no-deps",
            "--no-build-isolation",
            "--no-binary",
            "verifiers",
            "--dest",
            str(VENVS),
            f"verifiers=={VERSION}",
        )
    folder = VENVS / f"verifiers-{VERSION}" / "tests" / "v1" / "fixtures"
    if not folder.is_dir():
        with tarfile.open(archive) as file:
            file.extractall(VENVS, filter="data")
    return folder
