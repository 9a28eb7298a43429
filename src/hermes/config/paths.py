"""Paths under the Hermes home. Names only: nothing here touches the disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hermes.errors import ConfigError

HOME_VARIABLE = "HERMES_HOME"


def home(environ: Mapping[str, str] | None = None) -> Path:
    """HERMES_HOME, or ~/.hermes; absolute, and not necessarily there yet."""
    variables = os.environ if environ is None else environ
    chosen = variables.get(HOME_VARIABLE)
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        return (Path(variables["HOME"]) if variables.get("HOME") else Path.home()) / ".hermes"
    except RuntimeError as error:
        raise ConfigError(
            f"cannot tell where the Hermes home is: {error}", f"set {HOME_VARIABLE} to a directory"
        ) from error


def config_path(home: Path) -> Path:
    return home / "config.yaml"


def env_path(home: Path) -> Path:
    return home / ".env"


def db_path(home: Path) -> Path:
    return home / "hermes.db"


def skills_dir(home: Path) -> Path:
    return home / "skills"


def models_dir(home: Path) -> Path:
    """Models made ready for use, one folder each."""
    return home / "models"


def workspaces_dir(home: Path) -> Path:
    return home / "workspaces"


def logs_dir(home: Path) -> Path:
    return home / "logs"
