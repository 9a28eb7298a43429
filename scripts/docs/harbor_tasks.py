"""Writes docs/tasks.md: which public Harbor tasks run here, with what, and whether they are sound.

    python scripts/docs/harbor_tasks.py FOLDER [--wheels FOLDER] [--bases PATTERN]…

FOLDER has checkouts of public repositories, named OWNER+NAME, as they are; nothing is fetched here. Every
folder with a task.toml below is a task, but for templates of generators and results of runs. Its reference
solution and an agent that does nothing are played where the task can run on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from hermes.config.settings import SandboxSettings
from hermes.envs.harbor.check import Verdict, check_tasks
from hermes.envs.harbor.place import PlaceOptions
from hermes.envs.harbor.places import Kind, clean, open_places
from hermes.envs.harbor.schema import TaskError
from hermes.envs.harbor.task import TASK_FILE, Task, read_task

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tasks.md"
NOT_TASKS = ("template", "task-template", "jobs", "ci_checks", "fixtures", ".git")
MOST_REASON_CHARS = 160


def find_tasks(folder: Path) -> list[Path]:
    paths = sorted(path.parent for path in folder.rglob(TASK_FILE))
    return [path for path in paths if not set(path.relative_to(folder).parts) & set(NOT_TASKS)]


async def verdicts_of(folder: Path, options: PlaceOptions, kind: Kind) -> dict[str, Verdict]:
    """By the task's path below `folder`."""
    verdicts: dict[str, Verdict] = {}
    tasks: dict[str, Task] = {}
    for path in find_tasks(folder):
        name = str(path.relative_to(folder))
        try:
            tasks[name] = read_task(path, {})
        except TaskError as error:
            verdicts[name] = Verdict(name, "", problem=error.message)
    with tempfile.TemporaryDirectory(prefix="hermes-tasks-") as home:
        os.chmod(home, 0o711)  # noqa: PTH101  sandboxes of another user reach the folders that they are given
        places = open_places(Path(home), SandboxSettings(), options, kind)
        checked = await check_tasks(list(tasks.values()), places, Path(home), solutions=True)
        clean(Path(home))
    return verdicts | dict(zip(tasks, checked, strict=True))


def page(verdicts: dict[str, Verdict]) -> str:
    sound = sum(verdict.sound for verdict in verdicts.values())
    ran = sum(bool(verdict.place) for verdict in verdicts.values())
    repositories = len({name.partition("/")[0] for name in verdicts})
    text = f"""\
# Public tasks and environments

We tried {len(verdicts)} tasks of {repositories} public repositories, their own files, without a network.
{ran} could be run where this was written, by bubblewrap with a folder of Python packages; of {sound} the
reference solution scores 1 and an agent that does nothing 0. `scripts/docs/harbor_tasks.py` wrote this page.

```sh
hermes env check harbor FOLDER --solutions
```

A task whose tests install their runner from the network (`uvx`, `apt-get install curl`) needs one to be
scored.

| repository | task | runs here with | solution | nothing | reason |
|---|---|---|---|---|---|
"""
    lines = text.splitlines()
    for name, verdict in sorted(verdicts.items()):
        repository, _, path = name.partition("/")
        cells = [
            repository.replace("+", "/"),
            path or "/",
            verdict.place or "-",
            *("-" if value is None else f"{value:g}" for value in (verdict.solution, verdict.nothing)),
            reason(verdict.problem),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def reason(text: str) -> str:
    """In one cell: a line without what a table or a page would read as its own."""
    line = " ".join(text.split()).replace("|", "¦").replace("<", "‹").replace("`", "'")
    return line if len(line) <= MOST_REASON_CHARS else f"{line[:MOST_REASON_CHARS]}…"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--bases", action="append", default=[])
    parser.add_argument("--place", choices=["auto", "bubblewrap", "container"], default="auto")
    arguments = parser.parse_args()
    wheels = arguments.wheels.resolve() if arguments.wheels else None
    options = PlaceOptions("none", tuple(arguments.bases), wheels)
    verdicts = asyncio.run(verdicts_of(arguments.folder.resolve(), options, arguments.place))
    _, heading, openenv = PAGE.read_text("utf-8").partition("\n## OpenEnv")  # of openenv_environments.py
    PAGE.write_text(page(verdicts) + heading + openenv, "utf-8")


if __name__ == "__main__":
    main()
