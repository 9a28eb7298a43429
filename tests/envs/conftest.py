"""What the tests of environments share: a home of their own, and the bundled model's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.envs.templates import bundled_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tokenizer(bundled_home: Path) -> PreTrainedTokenizerBase:
    return bundled_tokenizer(bundled_home)
