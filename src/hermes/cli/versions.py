"""The versions that matter for a bug report, without importing the packages."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from hermes import __version__

_PACKAGES = ("torch", "transformers", "tinker", "pyarrow", "openai")


def version_text() -> str:
    """Hermes first, on a line of its own; then Python, SQLite and the packages that training depends on."""
    from hermes.store.sqlite import dbapi

    parts = [f"Python {platform.python_version()}", f"SQLite {dbapi().sqlite_version}"]
    parts += [f"{name} {_version(name)}" for name in _PACKAGES]
    return f"hermes, version {__version__}\n{', '.join(parts)}, {platform.system()} {platform.machine()}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
