"""Hermes as a stranger installs it: the checkout's wheel in a new virtual environment.

The packages that Hermes needs are those of the interpreter that runs the tests, found at the end of
`sys.path`; nothing of them is downloaded, and no `.pth` file among them is read, so an editable install is
not seen. Building the wheel downloads the build program (hatchling).
"""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT


@dataclass(frozen=True)
class InstalledHermes:
    """A virtual environment with the wheel in it."""

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    @property
    def package(self) -> Path:
        """The installed folder `hermes`."""
        (package,) = self.folder.glob("lib/python*/site-packages/hermes")
        return package


def install(folder: Path) -> InstalledHermes:
    """Builds the wheel of the checkout and installs it into a new environment beneath the folder."""
    wheels = folder / "wheels"
    _pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT))
    (wheel,) = wheels.glob("hermes_research-*.whl")
    target = folder / "venv"
    venv.create(target, with_pip=False, symlinks=True)
    (site_packages,) = target.glob("lib/python*/site-packages")
    shared = [path for path in sys.path if Path(path).name == "site-packages"]
    assert shared, "the tests run without installed packages"
    (site_packages / "shared.pth").write_text(
        "".join(f"import sys; sys.path.append({path!r})\n" for path in shared)
    )
    _pip("--python", str(target / "bin/python"), "install", "--no-deps", "--no-index", str(wheel))
    return InstalledHermes(target)


def tracked_files() -> list[Path]:
    """The files of the package in the checkout, relative to it."""
    lines = subprocess.run(
        ["git", "ls-files", "-z", "src/hermes"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [Path(line).relative_to("src/hermes") for line in lines.split("\0") if line]


def _pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments],
        capture_output=True,
        text=True,
    )
    if done.returncode and "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("needs the Python registry, for hatchling")
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
