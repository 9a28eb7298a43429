"""The import finder behind the shim: a module is made when it is imported, a name resolved when asked for."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from hermes.compat.atropos.names import MODULES, ROOT

_STAND_INS = {"wandb": "hermes.compat.atropos.wandb_stand_in"}


class ShimFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds atroposlib's modules, and stand-ins for packages that are not there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == ROOT or fullname.startswith(f"{ROOT}."):
            inside = fullname[len(ROOT) + 1 :]
            if inside in MODULES:
                return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

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
    """A module of atroposlib, whose names are Hermes's."""

    def __getattr__(self, name: str) -> Any:
        inside = self.__name__[len(ROOT) + 1 :]
        place = MODULES.get(inside, {}).get(name)
        if place is None:
            below = f"{inside}.{name}".lstrip(".")
            if below in MODULES:
                return importlib.import_module(f"{ROOT}.{below}")
            raise AttributeError(
                f"module '{self.__name__}' has no '{name}' (the shim of Hermes; see docs/compat.md)"
            )
        module, _, attribute = place.partition(":")
        value = getattr(importlib.import_module(module), attribute or name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *MODULES.get(self.__name__[len(ROOT) + 1 :], {})})

    @property
    def __all__(self) -> list[str]:
        return sorted(MODULES.get(self.__name__[len(ROOT) + 1 :], {}))


_finders: list[importlib.abc.MetaPathFinder] = []


def install() -> None:
    """From now on `import atroposlib…` gives Hermes's. Doing it twice is doing it once."""
    if _finders:
        return
    _forget()
    _finders.extend([ShimFinder(), StandInFinder()])
    sys.meta_path.insert(0, _finders[0])
    sys.meta_path.append(_finders[1])


def uninstall() -> None:
    """Imports are as they were before."""
    for finder in _finders:
        sys.meta_path.remove(finder)
    _finders.clear()
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name == ROOT or name.startswith(f"{ROOT}.")]:
        del sys.modules[name]
