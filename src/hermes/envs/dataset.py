"""Loads tasks from a local JSON lines file, or from a dataset on the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hermes.errors import MissingDependencyError, UsageError


def load_tasks(name: str, split: str, prompt_field: str) -> list[dict[str, Any]]:
    """All tasks; UsageError if the dataset cannot be loaded, or a task has no prompt."""
    path = Path(name).expanduser()
    tasks = (
        _from_file(path) if path.suffix in (".jsonl", ".json") or path.exists() else _from_hub(name, split)
    )
    if not tasks:
        raise UsageError(f"the dataset {name} has no tasks.", "Add at least one.")
    for number, task in enumerate(tasks, 1):
        if prompt_field not in task:
            raise UsageError(
                f"task {number} of {name} has no field '{prompt_field}'.",
                f"Its fields are {', '.join(task)}. Choose one with --env.prompt_field.",
            )
    return tasks


def _from_file(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise UsageError(
            f"the dataset {path} cannot be read: {error.strerror}.", "Check dataset_name."
        ) from error
    tasks = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{path}, line {number} is not JSON: {error}.", "Correct or remove it."
            ) from error
        if not isinstance(task, dict):
            raise UsageError(f"{path}, line {number} is not a JSON object.", "Write one object on each line.")
        tasks.append(task)
    return tasks


def _from_hub(name: str, split: str) -> list[dict[str, Any]]:
    try:
        from datasets import load_dataset  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise MissingDependencyError("datasets", "export", f"Loading the dataset {name}") from error
    try:
        return [dict(row) for row in load_dataset(name, split=split)]
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"the dataset {name} ({split}) cannot be loaded: {error}",
            "Check its name and the network, or give a JSONL file.",
        ) from error
