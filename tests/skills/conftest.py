"""Skills written to disk for one test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

WriteSkill = Callable[..., Path]


def skill_text(
    name: str, description: str = "Does a thing.", body: str = "# Steps\n\nDo it.", extra: str = ""
) -> str:
    return f"---\nname: {name}\ndescription: {description}\n{extra}---\n\n{body}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def write_skill(home: Path) -> WriteSkill:
    """Writes a user's skill and returns its directory; `text` replaces the whole SKILL.md."""

    def write(name: str, *, category: str = "", text: str | None = None, **parts: str) -> Path:
        directory = home / "skills" / category / name
        directory.mkdir(parents=True)
        (directory / "SKILL.md").write_text(skill_text(name, **parts) if text is None else text)
        return directory

    return write
