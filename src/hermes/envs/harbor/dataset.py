"""A folder of Harbor tasks: each task that can be read, and one line for each that cannot.

The folder itself may be a task, or hold tasks at any depth up to three; hidden folders are not looked into.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hermes.envs.harbor.schema import TaskError
from hermes.envs.harbor.task import TASK_FILE, Task, read_task
from hermes.errors import UsageError

_DEPTH = 3


@dataclass(frozen=True, slots=True)
class BadTask:
    """A task that is left out."""

    name: str
    """Its folder, relative to that of the dataset."""
    reason: str


@dataclass(frozen=True, slots=True)
class TaskFolder:
    tasks: tuple[Task, ...]
    bad: tuple[BadTask, ...]


def read_tasks(folder: Path, environ: Mapping[str, str] | None = None) -> TaskFolder:
    """UsageError: there is no such folder, or nothing in it looks like a task."""
    folder = folder.expanduser()
    if not folder.is_dir():
        raise UsageError(f"there is no folder '{folder}'.", "Name a folder of Harbor tasks.")
    tasks: dict[str, Task] = {}
    bad: list[BadTask] = []
    for path in _task_folders(folder.resolve(), _DEPTH):
        name = str(path.relative_to(folder.resolve())) if path != folder.resolve() else path.name
        try:
            task = read_task(path, environ)
        except TaskError as error:
            bad.append(BadTask(name, error.message))
            continue
        if task.key in tasks:
            bad.append(BadTask(name, f"it has the name of {tasks[task.key].folder.name}: {task.key}."))
        else:
            tasks[task.key] = task
    if not tasks and not bad:
        raise UsageError(
            f"'{folder}' holds no Harbor task.", f"A task is a folder with {TASK_FILE} and instruction.md."
        )
    return TaskFolder(tuple(tasks.values()), tuple(bad))


def _task_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Folders that are tasks, or were meant as one: they have instruction.md and no task.toml."""
    if (folder / TASK_FILE).is_file() or (folder / "instruction.md").is_file():
        yield folder
        return
    if depth == 0:
        return
    with os.scandir(folder) as entries:
        names = sorted(
            entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."
        )
    for name in names:
        yield from _task_folders(folder / name, depth - 1)
