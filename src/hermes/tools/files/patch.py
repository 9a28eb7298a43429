"""patch: a change to a part of a text file, by exact replacement or by unified diff; all or nothing."""

from __future__ import annotations

from hermes.core import JSONObject, ToolErrorKind
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema
from hermes.tools.files.diff import TextChange, apply_diff, replace_exact
from hermes.tools.files.read_write import MAX_BYTES, write_lock
from hermes.tools.workspace import os_errors, permit_path


async def _patch(arguments: JSONObject, bench: Workbench) -> str:
    by_diff = "diff" in arguments
    names = [name for name in ("old", "new", "replace_all") if name in arguments]
    if (by_diff and names) or (not by_diff and not {"old", "new"} <= set(names)):
        raise ToolError("give either old and new, or diff", kind=ToolErrorKind.BAD_ARGUMENTS)
    path = arguments["path"]
    change_text = arguments["diff"] if by_diff else f"-{arguments['old']}\n+{arguments['new']}"
    allowed = await permit_path(bench, path, "change", change_text)
    async with write_lock(bench):
        with os_errors(path):
            data = await bench.sandbox.read_file(allowed, MAX_BYTES + 1)
        text = _decode(data, path)
        change = _change(text, arguments)
        with os_errors(path):
            await bench.sandbox.write_file(allowed, change.text.encode("utf-8"))
    count = len(change.lines)
    where = ", ".join(map(str, change.lines[:10])) + (" …" if count > 10 else "")
    return f"changed {path} at {count} place{'s' if count > 1 else ''} (line {where})"


def _decode(data: bytes, path: str) -> str:
    if len(data) > MAX_BYTES:
        raise ToolError(f"'{path}' is larger than {MAX_BYTES} bytes; change it with a command")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(
            f"'{path}' is not UTF-8 text (byte {error.start}); change it with a command"
        ) from None


def _change(text: str, arguments: JSONObject) -> TextChange:
    """Applies the change; a file with CRLF throughout keeps its line ends."""
    crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    if crlf:
        text = text.replace("\r\n", "\n")
        arguments = {
            name: value.replace("\r\n", "\n") if isinstance(value, str) else value
            for name, value in arguments.items()
        }
    if "diff" in arguments:
        change = apply_diff(text, arguments["diff"])
    else:
        change = replace_exact(
            text, arguments["old"], arguments["new"], replace_all=arguments.get("replace_all", False)
        )
    return TextChange(change.text.replace("\n", "\r\n"), change.lines) if crlf else change


TOOLS = (
    Tool(
        name="patch",
        toolset="file",
        description=(
            "Change a part of a text file. Either give old and new: old must occur exactly once, word for "
            "word, white space included (or set replace_all). Or give diff: the hunks of a unified diff of "
            "this file. If any part does not fit, nothing is changed."
        ),
        parameters=object_schema(
            "path",
            path={
                "type": "string",
                "minLength": 1,
                "description": "Relative to the workspace, or absolute.",
            },
            old={"type": "string", "description": "Text to be replaced."},
            new={"type": "string", "description": "Text to put in its place; may be empty."},
            replace_all={"type": "boolean", "description": "Replace every occurrence of old."},
            diff={"type": "string", "description": "Unified diff, instead of old and new."},
        ),
        handler=_patch,
    ),
)
