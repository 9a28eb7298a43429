"""Loads tasks from a local JSON lines file, or from a dataset on the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hermes.data.lines import read_lines
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
    tasks = []
    for line in read_lines(path):
        if line.row is None:
            raise UsageError(f"{path}:{line.number}: {line.problem}.", "Write one JSON object on each line.")
        tasks.append(line.row)
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
