"""The result budget: a result that is too long for the conversation is saved in the sandbox and previewed.

The file's name contains the call's id and a hash of the content, so that a server that repeats ids cannot
overwrite a result that the conversation still refers to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hermes.core import content_hash
from hermes.tools.base import ToolOutput, Workbench
from hermes.tools.scratch import write_scratch

HEAD_CHARS = 1_500
TAIL_CHARS = 500
_NAME_CHARS = 64


@dataclass(frozen=True, slots=True)
class FittedResult:
    """The part of a result that the model receives."""

    content: str
    result_chars: int
    """Length of the result before the budget was applied."""
    saved_path: str | None = None


async def fit(output: ToolOutput, max_chars: int | None, call_id: str, bench: Workbench) -> FittedResult:
    """The content if it is within the budget, else a preview and the path of the whole."""
    content = storable(output.content)
    if max_chars is None or len(content) <= max_chars:
        return FittedResult(content, len(content))
    full = content if output.full is None else storable(output.full)
    path: str | None = None
    try:
        path = await write_scratch(bench, f"results/{_file_name(call_id, full)}", full.encode("utf-8"))
        where = f'path="{path}"'
    except OSError as error:  # the model still gets the preview, and the error
        where = f'not_saved="{error.strerror or type(error).__name__}"'
    status = "" if output.exit_code is None else f' exit_code="{output.exit_code}"'
    opening = f'<persisted-output {where} chars="{len(full)}"{status}>'
    return FittedResult(f"{opening}\n{preview(full)}\n</persisted-output>", len(content), path)


def preview(text: str) -> str:
    """Head and tail of a text, and the number of characters between."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text
    left_out = len(text) - HEAD_CHARS - TAIL_CHARS
    return f"{text[:HEAD_CHARS]}\n… {left_out} characters left out …\n{text[-TAIL_CHARS:]}"


def storable(text: str) -> str:
    """The text with NUL and lone surrogates escaped, which every file and database accepts."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def _file_name(call_id: str, content: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", call_id)[:_NAME_CHARS]
    return f"{safe or 'call'}-{content_hash(content)[:8]}.txt"
