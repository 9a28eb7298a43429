"""Paths and errors of the file tools: which paths may be used, and how an OSError is reported to the model.

An isolating sandbox is itself the security boundary, and any path may be used. In another one a path that
leaves the workspace (after symbolic links), or that is private (`safety.private`), needs approval. The check
uses the current state of the path: a process that the agent runs could change a link afterwards, so the
security boundary of an agent that may run commands is the approval of those commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from hermes.core import ToolErrorKind
from hermes.errors import ToolError
from hermes.safety.paths import resolve_inside
from hermes.safety.private import PrivatePlaces, is_imported_from
from hermes.tools.base import Workbench

_WRITES = frozenset(("write", "change"))


async def permit_path(bench: Workbench, path: str, verb: str, content: str = "") -> str:
    """The path to pass to the sandbox: relative to the workspace if it is inside it.

    `verb` is the operation ('read', 'write', …); the approver is shown '<verb> <real path>' and, where there
    is one, the content that is written.
    """
    if not path or "\0" in path:
        raise bad_path(path, "it is empty" if not path else "it holds a NUL character")
    if path.startswith("~"):
        raise bad_path(path, f"'~' is not expanded; the workspace is {bench.sandbox.workspace}")
    if bench.sandbox.isolated:
        return path
    root = Path(bench.sandbox.workspace)
    with os_errors(path):
        try:
            inside: str | None = str(resolve_inside(root, path).relative_to(root.resolve()))
        except PermissionError:
            inside = None
        real = (root / path).resolve()
    reason = private_places(bench).reason(real, root.resolve())
    if reason is None and verb in _WRITES and is_imported_from(real):
        reason = "Hermes runs code from there"
    if inside is not None and reason is None:
        return inside
    action = f"{verb} {real}" + (f" ({reason})" if reason else "")
    await bench.approver.approve("path", f"{action}\n{content}" if content else action)
    return str(real)


def private_places(bench: Workbench) -> PrivatePlaces:
    home = cast("Path | None", bench.resources.get("home"))
    return PrivatePlaces.of_this_user() if home is None else PrivatePlaces.of(home)


def bad_path(path: str, reason: str) -> ToolError:
    return ToolError(f"'{path}' is not a usable path: {reason}", kind=ToolErrorKind.BAD_ARGUMENTS)


@contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Turns an OSError for a path into a ToolError for the model."""
    try:
        yield
    except FileNotFoundError:
        raise ToolError(f"'{path}' does not exist") from None
    except IsADirectoryError:
        raise ToolError(f"'{path}' is a directory, not a file") from None
    except NotADirectoryError:
        raise ToolError(f"a part of '{path}' is a file, not a directory") from None
    except PermissionError as error:
        raise ToolError(f"'{path}' may not be touched: {error.strerror or error}") from None
    except OSError as error:
        raise ToolError(f"'{path}': {error.strerror or error}") from None
