"""Build hook: `hermes_compat.pth` is installed into site-packages, by wheels and by editable installs.

Python reads it when it starts; see src/hermes/compat/startup.py.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PTH = "hermes_compat.pth"


class StartupFile(BuildHookInterface):  # type: ignore[misc]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        key = "force_include_editable" if version == "editable" else "force_include"
        build_data[key][f"{self.root}/src/{PTH}"] = PTH
