"""A tiny model that can chat, an engine that serves it, and the trainers of `hermes train` against it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.engine.http.engine_process import KEY, Server, launch, make_tiny
from tests.training.world import Process

Hermes = Callable[..., Process]
TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}\n{{ message.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny(tmp_path_factory.mktemp("models") / "chat")
    maker: Any = AutoTokenizer
    tokenizer = maker.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    config = folder / "config.json"  # room for the descriptions of tools, a token a letter
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 2048}))
    return folder


@pytest.fixture(scope="session")
def chat_engine(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = launch(chat_model, tmp_path_factory.mktemp("engine"), "--max-adapters", "64")
    yield server
    server.kill()


@pytest.fixture
def hermes(tmp_path: Path, chat_engine: Server, chat_model: Path) -> Iterator[Hermes]:
    """Starts `hermes …` with the engine as its service; each is gone at the end of the test."""
    started: list[Process] = []

    def start(*arguments: str, **variables: str) -> Process:
        service = {"TINKER_BASE_URL": chat_engine.url, "TINKER_API_KEY": KEY}
        started.append(Process(tmp_path / "home", *arguments, env={**service, **variables}))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def write_pairs(path: Path, count: int, seed: int = 0) -> Path:
    """Somebody likes answers of the letter a."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        chosen, rejected = "a" * rng.randint(3, 6), "z" * rng.randint(3, 6)
        rows.append({"prompt": f"q{number}", "chosen": chosen, "rejected": rejected, "margin": 1.0})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
