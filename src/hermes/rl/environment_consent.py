"""Which environment files an agent may load, and which a person is asked about.

Loading an environment runs its file in this process, outside the sandbox and with the stored keys. An agent
may load a listed one that it cannot write itself. For any other file, and for a listed one in a folder that
the agent can write, a person is shown the whole source first; what then runs is a private copy of exactly
that source, in a folder of its own: a later change of the file has no effect, and neither has a module beside
it. An environment that needs its neighbours has to be in a listed folder outside the workspace.
"""

from __future__ import annotations

import asyncio
import io
import tokenize
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes.core import content_hash
from hermes.disk.files import atomic_write
from hermes.errors import UsageError

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.tools.base import Workbench

APPROVED = "approved_environments"
MAX_BYTES = 500_000


class UnusableEnvironmentError(UsageError):
    """There is no such environment, or its file cannot be shown to a person."""

    def __init__(self, message: str, available: Sequence[str]) -> None:
        super().__init__(message, "choose one of those that are available, or write a Python file in UTF-8")
        self.available = available


async def consented_environment(bench: Workbench, config: Config, reference: str) -> Path:
    """The file to load for a name or path. ToolError if the person refuses, UnusableEnvironmentError if
    there is none."""
    from hermes.rl.config.resolve import list_environments, listed_environment

    path = await asyncio.to_thread(listed_environment, config, reference)
    if path is not None and not _is_writable(path, bench, config):
        return path
    try:
        return await _approved_copy(path or _existing_file(reference), bench, config)
    except UsageError as error:
        environments = (await asyncio.to_thread(list_environments, config)).environments
        raise UnusableEnvironmentError(error.message, [env.name for env in environments]) from error


async def consent_to_selection(bench: Workbench, config: Config) -> None:
    """Asks about the selected environment if the agent can write its file; every tool that loads it is
    preceded by this. Replaces the file of the selection by the approved copy."""
    from hermes.rl.config.resolve import current_selection, save

    selection = current_selection(config.home)
    path = Path(selection.file_path)
    if path.is_file() and _is_writable(path, bench, config):
        copy = await _approved_copy(path, bench, config)
        save(config.home, replace(selection, file_path=str(copy)))


def _is_writable(path: Path, bench: Workbench, config: Config) -> bool:
    """Whether the agent can write the file without a person's approval."""
    real = path.resolve()
    if not bench.sandbox.isolated and real.is_relative_to(config.home.resolve()):
        return False  # file tools and commands ask before they touch our home
    workspace = cast("Path | None", bench.resources.get("workspace"))
    folders = [workspace] if workspace is not None else []
    if not bench.sandbox.isolated:
        folders.append(Path(bench.sandbox.workspace))
    return any(real.is_relative_to(folder.resolve()) for folder in folders)


def _existing_file(reference: str) -> Path:
    path = Path(reference).expanduser()
    if not path.is_file():
        raise UsageError(f"there is no environment '{reference}'.")
    return path.resolve()


async def _approved_copy(path: Path, bench: Workbench, config: Config) -> Path:
    source = await asyncio.to_thread(read_source, path)
    await bench.approver.approve("rl_environment", f"{path}\n{source}")
    copy = config.home / "rl" / APPROVED / content_hash(source)[:16] / f"{path.stem}.py"
    await asyncio.to_thread(atomic_write, copy, source)
    return copy


def read_source(path: Path) -> str:
    """The text of a Python file; UsageError if Python would read other text than a person is shown."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    problem = None
    if len(data) > MAX_BYTES:
        problem = f"is larger than {MAX_BYTES} bytes"
    else:
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            if encoding != "utf-8":
                problem = f"declares the encoding {encoding}"
            source = data.decode("utf-8")
        except (SyntaxError, UnicodeDecodeError):
            problem = "is not UTF-8 text"
    if problem is not None:
        raise UsageError(f"{path} {problem}.", "an environment is a Python file in UTF-8")
    return source
