"""The folder of a tiny model, for engines that load one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.sampling_parts import tiny_tokenizer
from tests.engine.tiny import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    tiny_model().save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path
