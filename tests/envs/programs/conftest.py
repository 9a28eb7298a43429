"""Environments of a program, with a tokenizer of a few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes.envs.builtin.program import ProgramConfig, ProgramEnv
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.tokenise import load_tokenizer
from tests.envs.programs.policy import AGENT, Make
from tests.envs.token_source import TokenServer, Words
from tests.rl.world import tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(path, 4096, words=["answer"])
    return path


@pytest.fixture(scope="module")
def words(tokenizer_folder: Path) -> Words:
    return Words(load_tokenizer(str(tokenizer_folder)), "answer")


@pytest.fixture
def make(tmp_path: Path, tokenizer_folder: Path) -> Make:
    tasks = tmp_path / "tasks.jsonl"
    row = {"prompt": "Write it.", "id": "one", "expected": "7", "files": {"notes.txt": "blue"}}
    tasks.write_text(json.dumps(row) + "\n")
    scorer = tmp_path / "tests.py"
    scorer.write_text(
        "async def score(ctx):\n"
        "    return float((await ctx.read_file('answer.txt')).strip() == ctx.expected)\n"
    )

    def made(
        server: TokenServer | None, words: str = "{prompt}", program: Path | None = None, **settings: Any
    ) -> ProgramEnv:
        defaults: dict[str, Any] = {
            "agent": f"{program or AGENT} {words}",
            "dataset_name": str(tasks),
            "reward": f"{scorer}:score",
            "tokenizer_name": str(tokenizer_folder),
            "group_size": 2,
            "max_token_length": 400,
            "include_messages": True,
            "use_wandb": False,
        }
        address = server.base_url if server else "http://127.0.0.1:9/v1"
        served = APIServerConfig(
            base_url=address, model_name="policy", server_type="sglang", health_check=False
        )
        return ProgramEnv(ProgramConfig(**{**defaults, **settings}), [served])

    return made
