"""The import finder behind the shim: a module is made when it is imported, a name resolved when asked for."""

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
from hermes.compat.atropos.servers.managed import open_managed
from hermes.envs.servers.manager import ServerManager

_STAND_INS = {"wandb": "hermes.compat.atropos.wandb_stand_in"}


class ShimFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of atroposlib and, of `environments`, those that the reference has.

    A folder `environments` of the user's own stays the package: only what the table names is answered here.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        root, inside = _parts(fullname)
        if inside not in TABLES.get(root, {}):
            return None
        if fullname != AGENT_ROOT:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if importlib.machinery.PathFinder.find_spec(AGENT_ROOT) is not None:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        # `python environments/my_env.py` has the folder itself on the path, and not the one above.
        spec.submodule_search_locations = [place for place in sys.path if Path(place).name == AGENT_ROOT]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return ShimModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run: names are resolved when they are asked for."""


class StandInFinder(importlib.abc.MetaPathFinder):
    """Comes last, so that it is asked only for what nobody else has."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        made_from = _STAND_INS.get(fullname)
        if made_from is None:
            return None
        source = importlib.util.find_spec(made_from)
        assert source is not None and source.origin is not None, "a part of this package"
        return importlib.util.spec_from_file_location(fullname, source.origin)


class ShimModule(ModuleType):
    """A module of another project, whose names are Hermes's."""

    def __getattr__(self, name: str) -> Any:
        root, inside = _parts(self.__name__)
        place = TABLES[root].get(inside, {}).get(name)
        if place is None:
            below = f"{inside}.{name}".lstrip(".")
            if below in TABLES[root]:
                return importlib.import_module(f"{root}.{below}")
            raise AttributeError(
                f"module '{self.__name__}' has no '{name}' (the shim of Hermes; see docs/compat.md)"
            )
        module, _, attribute = place.partition(":")
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
    """From now on atroposlib, and the reference's modules of `environments`, are Hermes's.

    Doing it twice is doing it once.
    """
    if _finders:
        return
    _forget()
    _finders.extend([ShimFinder(), StandInFinder()])
    sys.meta_path.insert(0, _finders[0])
    sys.meta_path.append(_finders[1])
    ServerManager.managed_server_factory = open_managed


def uninstall() -> None:
    """Imports are as they were before."""
    ServerManager.managed_server_factory = None
    for finder in _finders:
        sys.meta_path.remove(finder)
    _finders.clear()
    _forget()


def _forget() -> None:
    for name, module in list(sys.modules.items()):
        if _parts(name)[0] == ROOT or isinstance(module, ShimModule):
            del sys.modules[name]


def _parts(fullname: str) -> tuple[str, str]:
    """The package, and the module in it: `` for the package itself."""
    root, _, inside = fullname.partition(".")
    return root, inside
