"""The quick look at a whole example finds every secret that the careful look at its parts finds."""

from __future__ import annotations

import random
from dataclasses import replace

from hermes.core import Header, Message, Source, ToolCall, new_id
from hermes.data.example import Example, build
from hermes.data.redaction.redact import RedactionLevel, Scrubber
from hermes.safety.redact import Redactor

KNOWN = "s3cr3t-Value-4711"
SECRETS = (
    "ghp_" + "aB3" * 13,
    "AKIAABCDEFGHIJKLMNOP",
    "password: hunter2Xyz9",
    "--token=abcDEF123456",
    "https://bob:Pa55word@host/x",
    KNOWN,
    "Authorization: Bearer abcDEF123456",
)
GLUE = ("", " ", "\n", '"', "token", "password:", "x", "é", "[REDACTED:", "\ud800", "key=")


def drawn_text(draw: random.Random, secret: str) -> str:
    pieces = [draw.choice(GLUE) for _ in range(draw.randint(0, 4))]
    pieces.insert(draw.randint(0, len(pieces)), secret)
    return "".join(pieces)


def drawn(draw: random.Random) -> Example:
    texts = [
        drawn_text(draw, draw.choice((*SECRETS, "", "", "")) if draw.random() < 0.3 else "") for _ in range(8)
    ]
    call = ToolCall("c", "tool", texts[0], error=texts[1] or None)
    messages = (
        Message.system(texts[2]),
        Message.user(texts[3]),
        Message.assistant(texts[4], reasoning=texts[5], tool_calls=(call,)),
        Message.tool(call, texts[6]),
        Message.assistant("done"),
    )
    header = Header(new_id(), Source.CHAT, "m", 1)
    place = draw.choice((None, "note", "password", "list"))
    if place is not None:
        value = [texts[7], {"token": texts[7]}] if place == "list" else texts[7]
        header = replace(header, metadata={place: value})
    tools = ({"name": "tool", "description": texts[7] if draw.random() < 0.2 else "d", "parameters": {}},)
    return build(header, messages, tools=tools)


def test_nothing_is_overlooked() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    changed = 0
    for _ in range(2000):
        example, level = drawn(draw), draw.choice(list(RedactionLevel)[1:])
        careful, quick = (Scrubber(Redactor({"KEY": KNOWN}), level) for _ in range(2))
        careful._is_clean = lambda text: False  # type: ignore[method-assign]
        assert quick.example(example) == careful.example(example)
        assert quick.report == careful.report
        changed += bool(quick.report.hits)
    assert 200 < changed < 1900
