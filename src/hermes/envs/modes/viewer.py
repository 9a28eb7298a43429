"""Renders the groups of a JSONL file as an HTML page: one collapsible block per group, all text escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; }}
details {{ border: 1px solid #ccc; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }}
summary {{ cursor: pointer; font-variant-numeric: tabular-nums; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 .8rem;
  font: 13px/1.45 ui-monospace, monospace; }}
.role {{ color: #666; font-size: 13px; }} .good {{ color: #17692c; }} .bad {{ color: #a11a1a; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #16181c; color: #ddd; }}
details {{ border-color: #444; }}
.role {{ color: #999; }} .good {{ color: #6fce8a; }} .bad {{ color: #f08a8a; }} }}
</style></head><body><h1>{title}</h1>
"""


def generate_html(input_path: str | Path, output_path: str | Path | None = None) -> Path:
    """Writes the page, to <stem>.html beside the file by default. The file is read line by line."""
    source = Path(input_path)
    target = Path(output_path) if output_path else source.with_suffix(".html")
    part = target.with_name(f".{target.name}.part")
    part.touch(mode=0o600)
    part.chmod(0o600)
    with part.open("w", encoding="utf-8") as page:
        page.write(_HEAD.format(title=escape(source.name)))
        for number, group in enumerate(_groups(source), 1):
            page.write(group_html(group, number))
        page.write("</body></html>\n")
    part.replace(target)
    return target


def _groups(source: Path) -> Iterator[dict[str, Any]]:
    with source.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def group_html(group: dict[str, Any], number: int) -> str:
    scores = group.get("scores") or []
    conversations = group.get("messages") or []
    listing = ", ".join(map(_score_html, scores))
    parts = [f"<details><summary>Group {number}: {len(scores)} answers, scores {listing}</summary>\n"]
    for index, conversation in enumerate(conversations):
        score = _score_html(scores[index]) if index < len(scores) else "none"
        parts.append(f"<details><summary>Answer {index + 1}, score {score}</summary>\n")
        parts += [_message_html(message) for message in _turns(conversation)]
        parts.append("</details>\n")
    return "".join([*parts, "</details>\n"])


def _turns(conversation: Any) -> list[dict[str, Any]]:
    if isinstance(conversation, str):
        return [{"role": "text", "content": conversation}]
    return [
        turn if isinstance(turn, dict) else {"role": "text", "content": turn} for turn in conversation or ()
    ]


def _message_html(message: dict[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False)
    if calls := message.get("tool_calls"):
        content_text = "" if content is None else f"{text}\n"
        text = content_text + json.dumps(calls, indent=1, ensure_ascii=False)
    return f'<div class="role">{escape(str(message.get("role", "")))}</div><pre>{escape(text)}</pre>\n'


def _score_html(value: Any) -> str:
    kind = "" if not isinstance(value, int | float) else "good" if value > 0 else "bad"
    text = f"{value:g}" if isinstance(value, int | float) else str(value)
    return f'<span class="{kind}">{escape(text)}</span>'
