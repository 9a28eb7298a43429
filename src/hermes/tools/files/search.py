"""search_files: text in files by regular expression, or files by name, inside the sandbox.

find and grep do the search in the sandbox, so it is the same in every back end and reads only what the
sandbox can. Symbolic links are not followed; `.git` and the agent's own `.hermes` are left out unless they
are searched by name, and so are private files where the sandbox does not isolate (`safety.private`); results
come in path order, so equal trees give equal results.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from hermes.core import JSONObject, ToolErrorKind
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema
from hermes.tools.scratch import SCRATCH
from hermes.tools.workspace import bad_path, permit_path, private_places

_TIMEOUT_S = 60.0
_LIMIT = 100
_LINE_BYTES = 1_000
_LINE_CHARS = 300
_BAD_PATTERN = 65
_NO_PATH = 66


async def _search_files(arguments: JSONObject, bench: Workbench) -> str:
    pattern, path = arguments["pattern"], arguments.get("path", ".")
    if "\0" in pattern or "\0" in arguments.get("file_glob", ""):
        raise ToolError("a pattern holds a NUL character", kind=ToolErrorKind.BAD_ARGUMENTS)
    allowed = await permit_path(bench, path, "search")
    root = allowed if allowed.startswith("/") else f"./{allowed}"
    private = private_tests(bench, root)
    limit = arguments.get("limit", _LIMIT)
    by_name = arguments.get("target", "content") == "files"
    glob = arguments.get("file_glob")
    if by_name:
        command = files_command(pattern, root, glob, limit + 1, private)
    else:
        command = content_command(pattern, root, glob, limit + 1, private)
    result = await bench.sandbox.run(command, timeout_s=_TIMEOUT_S)
    if result.timed_out:
        text = f"the search took longer than {_TIMEOUT_S:g} s; narrow path or file_glob"
        raise ToolError(text, kind=ToolErrorKind.TIMEOUT)
    if result.exit_code == _NO_PATH:
        raise bad_path(path, "it does not exist")
    if result.exit_code == _BAD_PATTERN:
        raise ToolError(f"bad pattern: {result.output.strip()}", kind=ToolErrorKind.BAD_ARGUMENTS)
    return _format_matches(result.output, limit)


def private_tests(bench: Workbench, root: str) -> list[str]:
    """Tests of `find` for files that only a person opens to the agent; none where the sandbox isolates."""
    if bench.sandbox.isolated:
        return []
    real = (Path(bench.sandbox.workspace) / root).resolve()
    return private_places(bench).exclusions(root, real)


def content_command(
    pattern: str, root: str, glob: str | None, count: int, private: Sequence[str] = ()
) -> str:
    """Shell text that prints the first `count` matching lines as path:line:text."""
    quoted = shlex.quote(pattern)
    return (
        f"[ -e {shlex.quote(root)} ] || exit {_NO_PATH}\n"
        # Models write Perl expressions (\d, lazy quantifiers), which not every grep supports.
        "kind=-E; echo x | grep -qP x 2>/dev/null && kind=-P\n"
        f'grep "$kind" -e {quoted} /dev/null; [ $? -le 1 ] || exit {_BAD_PATTERN}\n'
        f"{{ {_find(root, glob, private)} -print0 | LC_ALL=C sort -z"
        f' | xargs -0 -r grep "$kind" -nHI -e {quoted} --'
        f" | head -n {count} | cut -b 1-{_LINE_BYTES}; }} 2>/dev/null"
    )


def files_command(pattern: str, root: str, glob: str | None, count: int, private: Sequence[str] = ()) -> str:
    """Shell text that prints the first `count` files whose name (or path, with a slash) fits the glob."""
    if "/" in pattern:
        test = f"-path {shlex.quote('*/' + pattern.replace('**/', '*').lstrip('/'))}"
    else:
        test = f"-name {shlex.quote(pattern)}"
    return (
        f"[ -e {shlex.quote(root)} ] || exit {_NO_PATH}\n"
        f"{{ {_find(root, glob, private)} {test} -print | LC_ALL=C sort | head -n {count}; }} 2>/dev/null"
    )


def _find(root: str, glob: str | None, private: Sequence[str]) -> str:
    quoted = shlex.quote(root)
    name = f" -name {shlex.quote(glob)}" if glob else ""
    left_out = " -o ".join(("-name .git", f"-name {SCRATCH}", *private))
    return rf"find {quoted} \( {left_out} \) ! -path {quoted} -prune -o -type f{name}"


def _format_matches(output: str, limit: int) -> str:
    lines = output.removesuffix("\n").split("\n") if output else []
    rows = [line.removeprefix("./").removeprefix("./")[:_LINE_CHARS] for line in lines[:limit]]
    if len(lines) > limit:
        rows.append(f"… more than {limit} results; narrow the search or raise limit")
    return "\n".join(rows) or "no matches"


TOOLS = (
    Tool(
        name="search_files",
        toolset="file",
        description=(
            "Search the workspace. target 'content' (the default): lines that match a regular expression, "
            "as path:line:text. target 'files': files whose name fits a shell glob such as '*.py', or "
            "whose path does if the glob has a slash, such as 'src/**/test_*.py'."
        ),
        parameters=object_schema(
            "pattern",
            pattern={"type": "string", "minLength": 1, "description": "Regular expression, or glob."},
            target={"type": "string", "enum": ["content", "files"]},
            path={
                "type": "string",
                "minLength": 1,
                "description": "File or directory to search; unset: the workspace.",
            },
            file_glob={"type": "string", "minLength": 1, "description": "Only files named like this."},
            limit={
                "type": "integer",
                "minimum": 1,
                "maximum": 300,
                "description": f"Most results to show; {_LIMIT} if unset.",
            },
        ),
        handler=_search_files,
        stateless=True,
    ),
)
