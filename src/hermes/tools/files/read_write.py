"""read_file and write_file: text files of the sandbox.

Reading returns a bounded number of numbered lines; a file that is not text is an error that names its kind.
Writing replaces the file; writes and patches of one rollout happen one at a time.
"""

from __future__ import annotations

import asyncio

from hermes.core import JSONObject, ToolErrorKind
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema
from hermes.tools.workspace import os_errors, permit_path

MAX_BYTES = 10_000_000
_LINES = 2_000
_LINE_CHARS = 2_000
_SHOWN_CHARS = 80_000
_SNIFF_BYTES = 8_192
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"GIF8": "GIF",
    b"BM": "BMP",
}


async def _read_file(arguments: JSONObject, bench: Workbench) -> str:
    path = arguments["path"]
    allowed = await permit_path(bench, path, "read")
    with os_errors(path):
        data = await bench.sandbox.read_file(allowed, MAX_BYTES + 1)
    text = _decode(data[:MAX_BYTES], path)
    offset, limit = arguments.get("offset", 1), arguments.get("limit", _LINES)
    return _number_lines(text, offset, limit, whole=len(data) <= MAX_BYTES)


def _decode(data: bytes, path: str) -> str:
    """The bytes as UTF-8, damaged sequences replaced; ToolError for a binary file."""
    head = data[:_SNIFF_BYTES]
    if b"\0" in head:
        kind = _image_kind(head)
        if kind:
            raise ToolError(f"'{path}' is a {kind} image, not text; vision_analyze can look at it")
        raise ToolError(f"'{path}' is a binary file of {len(data)} bytes, not text")
    return data.decode("utf-8", "replace")


def _image_kind(head: bytes) -> str | None:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    return next((kind for magic, kind in _IMAGES.items() if head.startswith(magic)), None)


def _number_lines(text: str, offset: int, limit: int, *, whole: bool) -> str:
    """Lines offset, offset + 1, … as '<number><tab><line>', and a last line that states what is missing.

    `whole` is False if the text is only the beginning of its file.
    """
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines and offset == 1:
        return "(the file is empty)"
    if offset > len(lines):
        problem = f"offset {offset} is beyond the last line, {len(lines)}"
        raise ToolError(problem, kind=ToolErrorKind.BAD_ARGUMENTS)
    rows: list[str] = []
    size = 0
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], offset):
        rows.append(f"{number:6}\t{_clip_line(line)}")
        size += len(rows[-1])
        if size > _SHOWN_CHARS:
            break
    last = offset + len(rows) - 1
    if last < len(lines):
        rows.append(f"… lines {last + 1} to {len(lines)} not shown; continue with offset {last + 1}")
    if not whole:
        rows.append(f"… only the first {MAX_BYTES} bytes of the file can be read this way")
    return "\n".join(rows)


def _clip_line(line: str) -> str:
    line = line.removesuffix("\r")
    if len(line) <= _LINE_CHARS:
        return line
    return f"{line[:_LINE_CHARS]} … {len(line) - _LINE_CHARS} more characters in this line"


async def _write_file(arguments: JSONObject, bench: Workbench) -> str:
    path = arguments["path"]
    data = arguments["content"].encode("utf-8")
    allowed = await permit_path(bench, path, "write", arguments["content"])
    async with write_lock(bench):
        with os_errors(path):
            await bench.sandbox.write_file(allowed, data)
    return f"wrote {len(data)} bytes to {path}"


def write_lock(bench: Workbench) -> asyncio.Lock:
    """Held while a file is changed, so that parallel calls cannot undo each other's work."""
    lock = bench.resources.setdefault("write_lock", asyncio.Lock())
    assert isinstance(lock, asyncio.Lock)
    return lock


_PATH = {"type": "string", "minLength": 1, "description": "Relative to the workspace, or absolute."}

TOOLS = (
    Tool(
        name="read_file",
        toolset="file",
        description=(
            "Read a text file. Returns numbered lines; the number and the tab after it are not part of "
            "the file. Long files are shown in parts: use offset and limit."
        ),
        parameters=object_schema(
            "path",
            path=_PATH,
            offset={"type": "integer", "minimum": 1, "description": "First line to show; 1 if unset."},
            limit={
                "type": "integer",
                "minimum": 1,
                "maximum": _LINES,
                "description": f"Number of lines to show; {_LINES} if unset.",
            },
        ),
        handler=_read_file,
        stateless=True,
    ),
    Tool(
        name="write_file",
        toolset="file",
        description=(
            "Write a text file, replacing it if it exists and creating its directories. To change a part "
            "of a file use patch."
        ),
        parameters=object_schema(
            "path", "content", path=_PATH, content={"type": "string", "description": "The whole file."}
        ),
        handler=_write_file,
    ),
)
