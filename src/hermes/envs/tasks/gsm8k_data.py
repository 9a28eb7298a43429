"""GSM8K's problems, from the Hugging Face hub or from a folder with `train.jsonl` and `test.jsonl`.

The hub is probed first with a short timeout, because its own client retries for half a minute. With
HF_HUB_OFFLINE set, the local download cache is used.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hermes.envs.dataset import load_tasks
from hermes.envs.tasks.word_problems import WordProblem
from hermes.errors import MissingDependencyError, UsageError

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
    hint = "Check the name and the network, give a folder, or set --env.source generated."
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
