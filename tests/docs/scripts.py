"""The scripts of scripts/docs as modules."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.docs.pages import ROOT


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
