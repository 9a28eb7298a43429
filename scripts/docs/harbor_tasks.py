"""Writes docs/tasks.md: which public Harbor tasks run here, with what, and whether they are sound.

    python scripts/docs/harbor_tasks.py FOLDER [--wheels FOLDER] [--bases PATTERN]… [--clone]

FOLDER has checkouts of public repositories, named OWNER+NAME, as they are; `--clone` fetches those of the
page that it lacks, and the rows of repositories that it has not stay. Every folder with a task.toml below is
a task, but for templates of generators and results of runs. Its reference solution and an agent that does
nothing are played where the task can run on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterable
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
MOST_REASON_CHARS = 140
HEADING = "| repository | task | runs here with | solution | nothing | reason |"
OPENENV = "\n## OpenEnv"
"""Begins the section of openenv_environments.py."""
Row = tuple[str, ...]


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


def page(rows: dict[str, Row]) -> str:
    sound = sum(row[3:5] == ("1", "0") and not row[5] for row in rows.values())
    ran = sum(row[3:5] != ("-", "-") for row in rows.values())
    repositories = len({row[0] for row in rows.values()})
    text = f"""\
# Public tasks and environments

We tried {len(rows)} tasks of {repositories} public repositories, their own files, without a network.
{ran} were scored where this was written, by bubblewrap with a folder of Python packages, and with that
machine's Debian 12 and Python 3.11 in place of other versions of Python (`--env.bases "python:3*"`). Of
{sound} the reference solution scores 1 and an agent that does nothing 0. `scripts/docs/harbor_tasks.py`
wrote this page.

```sh
hermes env check harbor FOLDER --solutions
```

Where tests call `uvx`, the uv of that folder runs them. Tests that install more from the network
(`apt-get install`, another version of Python) need one to be scored.

{HEADING}
|---|---|---|---|---|---|
"""
    lines = [f"| {' | '.join(rows[name])} |" for name in sorted(rows)]
    return text + "\n".join(lines) + "\n"


def row_of(name: str, verdict: Verdict) -> Row:
    """The cells of a task; `name` is its path below the folder."""
    repository, _, path = name.partition("/")
    rewards = ("-" if value is None else f"{value:g}" for value in (verdict.solution, verdict.nothing))
    place, problem = verdict.place or "-", reason(verdict.problem)
    return (repository.replace("+", "/"), path or "/", place, *rewards, problem)


def read_page(text: str) -> dict[str, Row]:
    """The rows of the table, by what their tasks would be called in a folder of checkouts."""
    rows = {}
    for line in text.partition(HEADING)[2].splitlines()[2:]:
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        name = f"{cells[0].replace('/', '+')}/{'' if cells[1] == '/' else cells[1]}".rstrip("/")
        rows[name] = (*cells[:-1], reason(cells[-1]))
    return rows


def clone(folder: Path, repositories: Iterable[str]) -> None:
    """Fetches what `folder` lacks; the rows of one that is gone stay as they are."""
    for name in repositories:
        if not (folder / name).exists():
            url = f"https://github.com/{name.replace('+', '/')}"
            subprocess.run(["git", "clone", "--quiet", "--depth=1", url, str(folder / name)], check=False)


def reason(text: str) -> str:
    """In one cell: a line without what a table or a page would read as its own."""
    line = " ".join(text.split()).replace("|", "¦").replace("<", "‹").replace("`", "'")
    return line if len(line) <= MOST_REASON_CHARS else f"{line[:MOST_REASON_CHARS]}…"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--bases", action="append", default=[])
    parser.add_argument("--clone", action="store_true", help="fetch repositories of the page first")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--place", choices=["auto", "bubblewrap", "container"], default="auto")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    table, heading, openenv = arguments.page.read_text("utf-8").partition(OPENENV)
    rows = read_page(table.rstrip())
    if arguments.clone:
        clone(folder, sorted({name.partition("/")[0] for name in rows}))
    wheels = arguments.wheels.resolve() if arguments.wheels else None
    options = PlaceOptions("none", tuple(arguments.bases), wheels)
    verdicts = asyncio.run(verdicts_of(folder, options, arguments.place))
    tried = {path.name for path in folder.iterdir()}
    rows = {name: row for name, row in rows.items() if name.partition("/")[0] not in tried}
    rows |= {name: row_of(name, verdict) for name, verdict in verdicts.items()}
    arguments.page.write_text(page(rows) + heading + openenv, "utf-8")


if __name__ == "__main__":
    main()
