"""A small real tokenizer with a chat template, for tests that need exact counts and no particular model."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.data.compress.counting.tokenizer import find_tokenizer
from hermes.data.compress.counting.tokens import Counter
from tests.data.compress.made import write_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def counter(tokenizer_folder: Path) -> Counter:
    return Counter(find_tokenizer(str(tokenizer_folder), tokenizer_folder))
