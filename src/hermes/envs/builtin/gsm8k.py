"""gsm8k: grade school word problems, with the answer after `####`.

Teaches reasoning in text. Graded by the value of the answer (math-verify). The problems are those of the
data set, from the Hugging Face hub or from a folder with `train.jsonl` and `test.jsonl`; its test part is
held out. Where it cannot be loaded, that is an error: nothing else goes by its name. Generated problems of
the same form are the environment `word_problems`. With 135 million parameters this measures more
than it teaches.

The hub is probed first with a short timeout, because its own client retries for half a minute. With
HF_HUB_OFFLINE set, the local download cache is used.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field

from hermes.envs.builtin.word_problems import WordProblem, WordProblemsConfig, WordProblemsEnv
from hermes.envs.dataset import load_tasks
from hermes.envs.tasks.split import Split
from hermes.errors import MissingDependencyError, UsageError


class Gsm8kConfig(WordProblemsConfig):
    dataset_name: str = Field(
        default="openai/gsm8k",
        description="The data set on the hub, or a folder with train.jsonl and test.jsonl; fields question "
        "and answer.",
    )


class Gsm8kEnv(WordProblemsEnv):
    """Grade school word problems; 1 if the answer has the right value."""

    name = "gsm8k"
    env_config_cls: ClassVar[Any] = Gsm8kConfig
    config: Gsm8kConfig

    async def setup(self) -> None:
        self._problems: dict[Split, list[WordProblem]] = await asyncio.to_thread(self._read_problems)
        await super().setup()

    def _read_problems(self) -> dict[Split, list[WordProblem]]:
        held_out = load_problems(self.config.dataset_name, "test")
        questions = {problem.question for problem in held_out}
        train = load_problems(self.config.dataset_name, self.config.dataset_split)
        return {
            Split.TRAIN: [problem for problem in train if problem.question not in questions],
            Split.EVAL: held_out,
        }

    def generate(self, split: Split) -> Iterator[WordProblem]:
        problems = list(self._problems[split])
        random.Random(f"{split} {self.seed_of(split)}").shuffle(problems)
        return iter(problems)


if __name__ == "__main__":
    Gsm8kEnv.cli()


_CONFIG = "main"
_PROBE_TIMEOUT_S = 5.0
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def load_problems(name: str, part: str) -> list[WordProblem]:
    """All problems of a part; UsageError if they cannot be loaded."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _read(name, load_tasks(str(folder / f"{part}.jsonl"), part, "question"))
    return _read(name, _from_hub(name, part))


def _from_hub(name: str, part: str) -> list[dict[str, Any]]:
    try:
        from datasets import load_dataset  # type: ignore[import-untyped]
        from huggingface_hub.constants import ENDPOINT
    except ModuleNotFoundError as error:
        raise MissingDependencyError("datasets", "envs", f"Loading the data set {name}") from error
    hint = (
        "Check the name and the network, or give a folder with train.jsonl and test.jsonl: "
        "--env.dataset_name FOLDER. Generated problems of the same form are the environment word_problems."
    )
    try:
        _probe(ENDPOINT)
        return [dict(row) for row in load_dataset(name, _CONFIG, split=part)]
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"the data set {name} ({part}) cannot be loaded: {error}", hint) from error


def _probe(endpoint: str) -> None:
    """OSError if the endpoint is unreachable. Skipped offline and behind a proxy, where it proves nothing."""
    if os.environ.get("HF_HUB_OFFLINE") or any(os.environ.get(name) for name in _PROXIES):
        return
    address = urlsplit(endpoint)
    port = address.port or (443 if address.scheme == "https" else 80)
    socket.create_connection((address.hostname or "", port), _PROBE_TIMEOUT_S).close()


def _read(name: str, rows: Sequence[dict[str, Any]]) -> list[WordProblem]:
    problems = []
    for index, row in enumerate(rows, 1):
        solution = str(row.get("answer", ""))
        number = solution.rpartition("####")[2].strip().replace(",", "")
        if not number or "####" not in solution:
            raise UsageError(
                f"problem {index} of {name} has no answer after '####'.",
                "The field 'answer' must end with '#### NUMBER'.",
            )
        problems.append(WordProblem(str(row["question"]), solution, number))
    return problems
