"""A known secret reaches no file: not a message, not a raw response, not the search index, not the log."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from hermes.core import (
    Boundary,
    Message,
    Outcome,
    Rating,
    RatingKind,
    Reward,
    StopReason,
    TokenTrace,
    ToolCall,
    new_id,
)
from hermes.safety.redact import Redactor
from hermes.store import Reader, Writer
from tests import records

SECRET = 'sk-live/"9f8e7d6c5b4a+Zz=='


def test_a_secret_is_in_none_of_the_files(db: Path) -> None:
    leak = f"key {SECRET} end"
    call = ToolCall("call_1", "terminal", json.dumps({"command": f"curl -H 'X: {SECRET}'"}))
    with Writer(db, Redactor({"API_KEY": SECRET}).text) as writer:
        trajectory_id = records.record(
            writer,
            [
                Message.system(leak),
                Message.user(base64.b64encode(leak.encode()).decode()),
                Message.assistant(leak, reasoning=leak, tool_calls=(call,)),
                Message.tool(call, leak.encode().hex()),
                Message.assistant("done"),
            ],
            call=records.model_call(raw={"choices": [{"text": leak}]}),
            outcome=Outcome(StopReason.ERROR, Boundary.TOOL, "X", leak),
            metadata={"note": leak},
            config={"note": leak},
        )
        writer.add_rating(
            Rating(new_id(), trajectory_id, RatingKind.THUMB, 1, "ann", 1, comment=leak)
        ).result()
        writer.add_reward(Reward(trajectory_id, 1.0, "r", {"why": leak}, 1)).result()
        on_disk = b"".join(file.read_bytes() for file in db.parent.iterdir())  # the write-ahead log included
    on_disk += b"".join(file.read_bytes() for file in db.parent.iterdir())
    core = SECRET.encode()
    for form in (core, json.dumps(SECRET)[1:-1].encode(), core.hex().encode(), base64.b64encode(core)[:-4]):
        assert form not in on_disk
    assert b"9f8e7d6c5b4a" not in on_disk
    with Reader(db) as reader:
        assert reader.get(trajectory_id).messages[0].content == "key [REDACTED:API_KEY] end"


def test_token_ids_that_spell_a_secret_are_withheld_from_every_call_that_saw_it(db: Path) -> None:
    traced = records.model_call(tokens=TokenTrace((1, 2), (3,), (-0.5,)))
    clean = [Message.user("hello"), Message.assistant("hi")]
    leaky = [*clean, Message.user(f"my key is {SECRET}"), Message.assistant("noted")]
    with Writer(db, Redactor({"API_KEY": SECRET}).text) as writer:
        trajectory_id = records.record(writer, leaky, call=traced)
    with Reader(db) as reader:
        calls = [step.call for step in reader.get(trajectory_id).steps if step.call]
    assert calls[0].tokens == traced.tokens
    assert calls[0].tokens_withheld is None
    assert calls[1].tokens is None
    assert calls[1].tokens_withheld == "redacted"
