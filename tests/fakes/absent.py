"""Processes for which an installed package is not there."""

from __future__ import annotations

from pathlib import Path

_SITE = """
import sys
from importlib.machinery import PathFinder
ABSENT = {names!r}
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def without_packages(folder: Path, *names: str) -> str:
    """A folder to put on PYTHONPATH: Python runs what it holds before anything else."""
    place = folder / "without-packages"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(_SITE.format(names=names))
    return str(place)
