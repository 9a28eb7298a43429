"""`python my_env.py serve` without `hermes env`: other projects' modules are answered in plain Python too.

`hermes_compat.pth`, which is installed beside the package, calls `enable` when Python starts. It costs one
entry at the end of `sys.meta_path`, which is asked only for modules that nothing else has; an installed
atroposlib is therefore left alone.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` itself would cost every start of Python 10 ms
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_ROOTS = ("atroposlib", "environments")


class StartupFinder:
    """Installs the shim when a module of `_ROOTS` is imported that is not there."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] not in _ROOTS:
            return None
        from hermes.compat.atropos.finder import ShimFinder, install

        install()
        return ShimFinder().find_spec(fullname, path)


def enable() -> None:
    """Doing it twice is doing it once."""
    if StartupFinder not in sys.meta_path:
        sys.meta_path.append(StartupFinder)
