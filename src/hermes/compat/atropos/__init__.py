"""`import atroposlib` without atroposlib: its names resolve to Hermes's.

    from hermes.compat import atropos
    atropos.install()
    from atroposlib.envs.base import BaseEnv        # hermes.envs.base.BaseEnv

An installed atroposlib is not used while the shim is installed. `wandb`, which many environment files import
at the top, gets a stand-in that discards everything where it is not installed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from hermes.compat.atropos.names import AGENT_ROOT, ROOT, TABLES

__all__ = ["install", "uninstall"]


_STAND_INS = {"wandb": "hermes.compat.atropos.wandb_stand_in"}


class ShimFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of atroposlib, and hermes-agent's modules of `environments`.

    A folder `environments` of the user stays the package: only the modules of the table are replaced.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, inside = _parts(fullname)
        if inside not in TABLES.get(root, {}):
            if root != AGENT_ROOT or "." in inside or not isinstance(sys.modules.get(root), ShimModule):
                return None
            return importlib.machinery.PathFinder.find_spec(fullname, _own_folders())
        if fullname != AGENT_ROOT:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if importlib.machinery.PathFinder.find_spec(AGENT_ROOT) is not None:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        spec.submodule_search_locations = _own_folders()
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return ShimModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Runs nothing: names are resolved on first access."""


class StandInFinder(importlib.abc.MetaPathFinder):
    """The last finder, so that it serves only packages that are not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        module = _STAND_INS.get(fullname)
        if module is None:
            return None
        source = importlib.util.find_spec(module)
        assert source is not None and source.origin is not None, "a part of this package"
        return importlib.util.spec_from_file_location(fullname, source.origin)


class ShimModule(ModuleType):
    """A module of another project whose names resolve to Hermes's."""

    def __getattr__(self, name: str) -> Any:
        root, inside = _parts(self.__name__)
        target = TABLES[root].get(inside, {}).get(name)
        if target is None:
            submodule = f"{inside}.{name}".lstrip(".")
            if submodule in TABLES[root]:
                return importlib.import_module(f"{root}.{submodule}")
            raise AttributeError(
                f"module '{self.__name__}' has no '{name}' (the shim of Hermes; see docs/compat.md)"
            )
        module, _, attribute = target.partition(":")
        value = getattr(importlib.import_module(module), attribute or name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})

    @property
    def __all__(self) -> list[str]:
        root, inside = _parts(self.__name__)
        return sorted(TABLES[root].get(inside, {}))


_finders: list[importlib.abc.MetaPathFinder] = []


def install() -> None:
    """Makes atroposlib, and hermes-agent's modules of `environments`, resolve to Hermes. Idempotent."""
    if _finders:
        return
    _drop_cached_modules()
    _finders.extend([ShimFinder(), StandInFinder()])
    sys.meta_path.insert(0, _finders[0])
    sys.meta_path.append(_finders[1])


def uninstall() -> None:
    """Undoes `install`."""
    for finder in _finders:
        sys.meta_path.remove(finder)
    _finders.clear()
    _drop_cached_modules()


def _drop_cached_modules() -> None:
    for name, module in list(sys.modules.items()):
        if _parts(name)[0] == ROOT or isinstance(module, ShimModule):
            del sys.modules[name]


def _own_folders() -> list[str]:
    """The user's folders `environments` that sys.path leads to now: it grows while a file is imported."""
    below = [path for entry in sys.path if (path := Path(entry, AGENT_ROOT)).is_dir()]
    # `python environments/my_env.py` puts the folder itself on the path, not its parent.
    return [str(path) for path in below] + [entry for entry in sys.path if Path(entry).name == AGENT_ROOT]


def _parts(fullname: str) -> tuple[str, str]:
    """The package, and the module in it: `` for the package itself."""
    root, _, inside = fullname.partition(".")
    return root, inside
