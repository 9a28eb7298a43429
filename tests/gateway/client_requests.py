"""What the real clients send, as fixtures: the shape of every request, and none of their vendors' text.

A text of more than a few words that is not the script's own is {"$text": N}, of N characters, behind the mark
with which it begins; `read` puts neutral words in its place. HERMES_CLIENT_REQUESTS=1 makes the nightly run
of the real clients write them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from tests.gateway.scripted import Call, Heard, Json, Reply

FOLDER = Path(__file__).parent / "client_requests"
_WORDS = "some neutral words stand here in place of others and say nothing to anyone "
_MARK = re.compile(r"\A(?:x-anthropic-billing-header:[^\n]*|<[\w -]+>)")
_OWN = re.compile(r"JOB-|small job|COMPLETE_TASK|All done|I look|I delegate|echo hello")
_KEPT_HEADERS = re.compile(r"x-(?!stainless)|session|thread|user-agent|anthropic-|originator|openai-beta")
_FEW_WORDS, _LONGEST_OWN = 4, 400


class Exchange(NamedTuple):
    path: str
    headers: dict[str, str]
    body: Json
    reply: Reply


def neutral(value: Any, home: str) -> Any:
    """The value with placeholders for texts; `home` is the folder of the run."""
    if isinstance(value, dict):
        return {name: neutral(item, home) for name, item in value.items()}
    if isinstance(value, list):
        return [neutral(item, home) for item in value]
    if not isinstance(value, str):
        return value
    text = value.replace(home, "/home/user").replace(home.replace("/", "-"), "-home-user")
    if len(text.split()) <= _FEW_WORDS or (_OWN.search(text) and len(text) < _LONGEST_OWN):
        return text
    mark = _MARK.search(text)
    return {"$text": len(text), **({"behind": mark[0]} if mark else {})}


def expanded(value: Any) -> Any:
    if isinstance(value, list):
        return [expanded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$text" not in value:
        return {name: expanded(item) for name, item in value.items()}
    mark = value.get("behind", "")
    length = max(0, value["$text"] - len(mark) - 1)
    return f"{mark}\n{(_WORDS * (length // len(_WORDS) + 1))[:length]}".strip()


def write(name: str, requests: list[Heard], replies: list[Reply], home: Path) -> None:
    """The requests of one run and what was answered to each."""
    rows = []
    for heard, reply in zip(requests, replies, strict=True):
        headers = {name: value for name, value in heard.headers.items() if _KEPT_HEADERS.match(name)}
        calls = [[call.name, call.arguments, call.id] for call in reply.calls]
        answered = {"text": reply.text, "calls": calls}
        body = neutral(heard.json, str(home))
        rows.append({"path": heard.path, "headers": headers, "body": body, "reply": answered})
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(rows, indent=1, ensure_ascii=False) + "\n"
    (FOLDER / f"{name}.json").write_text(text, "utf-8")


def read(name: str) -> list[Exchange]:
    rows = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return [
        Exchange(
            row["path"],
            row["headers"],
            expanded(row["body"]),
            Reply(row["reply"]["text"], calls=tuple(Call(*call) for call in row["reply"]["calls"])),
        )
        for row in rows
    ]
