"""A Harbor task on disk: its folder, its instruction or steps, its tests and its reference solution.

Reading promises that every part of the task is either in the returned `Task` or the reason why it is refused:
a `TaskError` names the file or field. Nothing of the task is run, and no link in its folder is followed out.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hermes.disk.trees import walk
from hermes.envs.harbor.schema import StepPart, TaskError, TaskFile, VerifierPart, read_task_file

TASK_FILE = "task.toml"
_INSTRUCTION = "instruction.md"
_TEST = "test.sh"
_SOLUTION = "solve.sh"
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_MOST_TOML_BYTES = 1 << 20
_MOST_INSTRUCTION_BYTES = 4 << 20
_MOST_TASK_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Stage:
    """One instruction with the tests that score it: a whole task, or one of its steps."""

    part: StepPart | None
    """None: the task has no steps."""
    instruction: str
    tests: tuple[Path, ...]
    """Folders that are laid over one another: the task's own, then the step's."""
    solution: Path | None
    """A folder with solve.sh."""
    files: Path | None = None
    """Files of the step that are laid into the working directory before the agent starts."""


@dataclass(frozen=True, slots=True)
class Task:
    folder: Path
    key: str
    """Its name from the file, or the folder's."""
    file: TaskFile
    stages: tuple[Stage, ...]
    digest: str
    """The hash of every file of the task: a result belongs to this content."""
    environment_digest: str
    """The hash of the files that its image is built from."""

    @property
    def environment(self) -> Path:
        return self.folder / "environment"

    @property
    def dockerfile(self) -> Path | None:
        path = self.environment / "Dockerfile"
        return path if path.is_file() else None

    @property
    def has_solution(self) -> bool:
        return all(stage.solution is not None for stage in self.stages)

    def verifier_of(self, stage: Stage) -> VerifierPart:
        """A step that does not say where its verifier runs has the task's place for it."""
        of_task = self.file.verifier
        if stage.part is None:
            return of_task
        of_step = stage.part.verifier
        separate = of_task.separate if of_step.separate is None else of_step.separate
        machine = of_step.machine or (of_task.machine if separate else None)
        return replace(of_step, separate=separate, machine=machine)


def read_task(folder: Path, environ: Mapping[str, str] | None = None) -> Task:
    """TaskError: the folder is no task, or one that Hermes cannot run as it is."""
    path = folder / TASK_FILE
    task_file = read_task_file(_toml(path), environ)
    for name in _COMPOSE:
        if (folder / "environment" / name).exists():
            raise TaskError(f"environment/{name}: several containers for one task are not supported.")
    if task_file.machine.docker_image is None and not (folder / "environment/Dockerfile").is_file():
        raise TaskError("neither environment/Dockerfile nor environment.docker_image says where it runs.")
    digest, environment_digest = _digest(folder)
    stages = _steps(folder, task_file) if task_file.steps else (_stage(folder, folder, None),)
    return Task(folder, task_file.name or folder.name, task_file, stages, digest, environment_digest)


def _toml(path: Path) -> object:
    try:
        if path.stat().st_size > _MOST_TOML_BYTES:
            raise TaskError(f"{TASK_FILE} has more than {_MOST_TOML_BYTES} bytes.")
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise TaskError(f"there is no {TASK_FILE}.", "Name a folder of Harbor tasks.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise TaskError(f"{TASK_FILE} cannot be read: {error}.") from error


def _steps(folder: Path, task_file: TaskFile) -> tuple[Stage, ...]:
    for name in (_INSTRUCTION,):
        if (folder / name).exists():
            raise TaskError(
                f"{name}: a task with steps has an instruction in each step, and none of its own."
            )
    return tuple(_stage(folder / "steps" / part.name, folder, part) for part in task_file.steps)


def _stage(folder: Path, task: Path, part: StepPart | None) -> Stage:
    tests = tuple(path for path in dict.fromkeys((task / "tests", folder / "tests")) if path.is_dir())
    if not any((path / _TEST).is_file() for path in tests):
        raise TaskError(f"{_name(task, folder)}tests/{_TEST} is missing.")
    solution = folder / "solution"
    files = folder / "workdir"
    return Stage(
        part=part,
        instruction=_instruction(task, folder),
        tests=tests,
        solution=solution if (solution / _SOLUTION).is_file() else None,
        files=files if part is not None and files.is_dir() else None,
    )


def _instruction(task: Path, folder: Path) -> str:
    name = f"{_name(task, folder)}{_INSTRUCTION}"
    try:
        with (folder / _INSTRUCTION).open("rb") as stream:
            data = stream.read(_MOST_INSTRUCTION_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{name} cannot be read: {error}.") from error
    if len(data) > _MOST_INSTRUCTION_BYTES or not text.strip():
        raise TaskError(f"{name} is empty, or has more than {_MOST_INSTRUCTION_BYTES} bytes.")
    return text


def _name(task: Path, folder: Path) -> str:
    return "" if folder == task else f"{folder.relative_to(task)}/"


def _digest(folder: Path) -> tuple[str, str]:
    """The digests of the whole task and of its folder `environment`."""
    whole, environment = hashlib.sha256(), hashlib.sha256()
    left_bytes = _MOST_TASK_BYTES
    for path in sorted_files(folder):
        name = path.relative_to(folder)
        if path.is_symlink():
            if not _stays_inside(path, folder):
                raise TaskError(f"{name} is a link to outside of the task, or to itself.")
            content = hashlib.sha256(os.fsencode(path.readlink()))
        elif path.is_file():
            left_bytes -= path.stat().st_size
            if left_bytes < 0:
                raise TaskError(f"the task has more than {_MOST_TASK_BYTES} bytes.")
            with path.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256")
        else:
            raise TaskError(f"{name} is neither a file nor a folder.")
        line = f"{name}\0{path.lstat().st_mode & 0o111:o}\0{content.hexdigest()}\n"
        data = line.encode("utf-8", "surrogateescape")
        whole.update(data)
        if name.parts[0] == "environment":
            environment.update(data)
    return whole.hexdigest(), environment.hexdigest()


def _stays_inside(link: Path, folder: Path) -> bool:
    try:
        return link.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # Python before 3.13 raises the latter for a loop
        return False


def folder_digest(folder: Path) -> bytes:
    """Hashes the names, modes and contents of its files."""
    return _digest(folder)[0].encode() if folder.is_dir() else b""


def sorted_files(folder: Path) -> Iterator[Path]:
    """Everything but folders, in an order that does not depend on the disk; links are not followed."""
    names = []
    for directory, folders, files in walk(folder):
        names += [directory / name for name in files]
        names += [directory / name for name in folders if (directory / name).is_symlink()]
    yield from sorted(names)
