"""The Python that a sandbox sees: the interpreter and its standard library, without any installed package.

Hermes itself, the packages of its environment and its checkout are hidden wherever they lie: a task's
generator in reach of a command would give it the reference solution. Distribution packages under /usr stay
visible unless Hermes or a package that generates tasks is installed among them.
"""

from __future__ import annotations

import site
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import hermes

_LIBRARIES = ("site-packages", "dist-packages")
_OURS = ("hermes", "reasoning_gym")
"""Packages that generate tasks."""
_ROOT_DEPTH = 3
"""How far above our package its project file may lie."""


@dataclass(frozen=True, slots=True)
class BarePython:
    executable: str
    """The interpreter itself, not that of a virtual environment."""
    binds: tuple[str, ...]
    """Paths that must be bound besides /usr."""
    hidden: tuple[str, ...]
    """Directories to cover with an empty one, if they are visible at all."""
    programs: str | None
    """A directory for PATH; None if the interpreter lies in /usr."""


@cache
def bare_python() -> BarePython:
    executable = Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()
    prefix = Path(sys.base_prefix).resolve()
    hidden = tuple(str(path) for path in _hidden_directories(prefix))
    if prefix.is_relative_to("/usr") or Path.home().is_relative_to(prefix):
        return BarePython(str(executable), (), hidden, None)
    parts = (prefix / name for name in ("bin", "lib", "lib64", "ssl"))
    binds = tuple(str(path) for path in parts if path.is_dir() and not path.is_symlink())
    return BarePython(str(executable), binds, hidden, str(prefix / "bin"))


def _hidden_directories(prefix: Path) -> list[Path]:
    on_path = [Path(entry) for entry in sys.path if Path(entry).name in _LIBRARIES]
    libraries = [*on_path, *map(Path, site.getsitepackages([str(prefix)]))]
    hidden = [path for path in libraries if path.is_dir() and (_is_private(path, prefix) or _has_ours(path))]
    return list(dict.fromkeys(path.resolve() for path in (*hidden, _own_root())))


def _is_private(library: Path, prefix: Path) -> bool:
    """Whether the library belongs to a Python outside /usr."""
    return library.is_relative_to(prefix) and not prefix.is_relative_to("/usr")


def _has_ours(library: Path) -> bool:
    return any((library / name).exists() for name in _OURS)


def _own_root() -> Path:
    """The checkout that our package runs from; else the package's own directory."""
    package = Path(hermes.__file__).resolve().parent
    if package.parent.name in _LIBRARIES:
        return package
    above = list(package.parents)[:_ROOT_DEPTH]
    return next((path for path in above if (path / "pyproject.toml").is_file()), package)
