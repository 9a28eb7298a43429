"""A Hermes home with files in it, and the environment that points at it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Home = Callable[..., dict[str, str]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Writes config.yaml and .env where given; returns an environment that points at them."""

    def build(config: str | None = None, env: str | None = None, **variables: str) -> dict[str, str]:
        if config is not None:
            (tmp_path / "config.yaml").write_text(config)
        if env is not None:
            (tmp_path / ".env").write_text(env)
        return {"HERMES_HOME": str(tmp_path), **variables}

    return build
