"""The bench where nothing is installed but torch, transformers, safetensors, and what those need themselves.

Run as a module, with a model's folder: whatever else is installed here cannot be found. Prints the report,
and which parts of Hermes were loaded.
"""

from __future__ import annotations

import importlib.metadata as installed
import json
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import Any

from packaging.requirements import Requirement

ALONE = ("torch", "transformers", "safetensors")


def needed(names: Sequence[str]) -> set[str]:
    """These distributions, and all that they require without extras."""
    found: set[str] = set()
    waiting = [*names]
    while waiting:
        name = _plain(waiting.pop())
        if name in found:
            continue
        found.add(name)
        try:
            lines = installed.requires(name) or []
        except installed.PackageNotFoundError:  # for another platform
            continue
        wanted = (Requirement(line) for line in lines)
        waiting += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Without:
    """Finds modules where they lie, but these."""

    find_distributions = staticmethod(PathFinder.find_distributions)

    def __init__(self, modules: set[str]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name in self._modules else PathFinder.find_spec(name, path, target)


def main(folder: str) -> None:
    allowed = needed(ALONE) | {"hermes", "hermes-agent"}
    owners = installed.packages_distributions()
    hidden = {
        module for module, names in owners.items() if allowed.isdisjoint(_plain(name) for name in names)
    } - {"hermes", "tests"}
    sys.meta_path[:] = [Without(hidden) if one is PathFinder else one for one in sys.meta_path]
    import torch

    torch.set_num_threads(1)
    from hermes.engine.bench import Workload, bench
    from hermes.engine.info import EngineOptions

    load = Workload(batch=2, prompt=9, new=4, groups=1, group=2, shared=9, completion=6, repeat=1)
    report = bench(EngineOptions(folder, device="cpu", dtype="float32", kv_bytes=1 << 20), load)
    loaded = sorted(name for name in sys.modules if name.startswith("hermes."))
    print(json.dumps({"hidden": sorted(hidden), "report": report, "loaded": loaded}))


if __name__ == "__main__":
    main(sys.argv[1])
