"""Whatever a provider answers is a typed outcome; nothing is 'completed' without an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.batch.drive import command, rows
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider, Reply, bad_json, raw, status, text, tool_calls


def choice(message: Any, finish_reason: Any = "stop") -> Reply:
    return raw({"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]})


def calls_with_one_id(*expressions: str) -> Reply:
    calls = [
        {
            "id": "same",
            "type": "function",
            "function": {"name": "calculator", "arguments": json.dumps({"expression": e})},
        }
        for e in expressions
    ]
    return choice({"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls")


ANSWER = text("an answer")
WHOLE = json.dumps(
    {"choices": [{"message": {"role": "assistant", "content": "an answer"}, "finish_reason": "stop"}]}
)
FAILED = {
    "null message": choice(None),
    "message that is a list": choice(["no", "message"]),
    "no message": raw({"choices": [{"index": 0, "finish_reason": "stop"}]}),
    "empty choices": raw({"choices": []}),
    "null choices": raw({"choices": None}),
    "null choice": raw({"choices": [None]}),
    "no choices": raw({"id": "x"}),
    "not an object": raw([1, 2]),
    "trailing bytes": bad_json(WHOLE + " and more"),
    "half a body": bad_json(WHOLE[:-10]),
    "a web page": bad_json("<html>sign in</html>", content_type="text/html"),
    "413": status(413, message="payload too large"),
    "408": status(408, message="request timeout"),
    "content filter": choice({"role": "assistant", "content": ""}, "content_filter"),
}
"""Failures of the provider: no row, run again by the next start."""
ENDED = {
    "content and calls null": (choice({"role": "assistant", "content": None, "tool_calls": None}), "empty"),
    "content of spaces": (text(" \n"), "empty"),
    "only thinking": (text("", reasoning="hm"), "empty"),
    "no finish reason and no text": (choice({"role": "assistant", "content": ""}, None), "empty"),
    "413 that means too long": (status(413, message="prompt is too long"), "context_full"),
    "cut by the limit": (choice({"role": "assistant", "content": "half an"}, "length"), "truncated"),
    "no finish reason": (choice({"role": "assistant", "content": "an answer"}, None), "completed"),
    "unknown finish reason": (choice({"role": "assistant", "content": "an answer"}, "eos!"), "completed"),
    "a refusal": (choice({"role": "assistant", "content": None, "refusal": "I will not."}), "completed"),
    "content type text/plain": (bad_json(WHOLE, content_type="text/plain"), "completed"),
    "duplicate call ids": (calls_with_one_id("1+1", "2+2"), "completed"),
    "arguments that are no JSON": (tool_calls([("calculator", "{broken")]), "completed"),
    "a call without a name": (tool_calls([("", {})]), "completed"),
}
"""Answers of the model: a row with its stop reason."""


def answer(body: dict[str, Any]) -> Reply:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return ANSWER
    name = last["content"]
    return FAILED[name] if name in FAILED else ENDED[name][0]


def test_every_odd_answer_is_a_typed_outcome_and_none_is_completed_without_an_answer(tmp_path: Path) -> None:
    prompts = "".join(json.dumps({"id": name, "prompt": name}) + "\n" for name in (*FAILED, *ENDED))
    (tmp_path / "tasks.jsonl").write_text(prompts)
    with FakeProvider(answer) as provider:
        (tmp_path / "config.yaml").write_text(
            f"providers: {{lab: {{base_url: '{provider.base_url}', max_retries: 0}}}}\n"
        )
        arguments = command(tmp_path, provider, "--max-tries", "1")
        arguments[arguments.index("m")] = "lab/m"
        del arguments[(flag := arguments.index("--base-url")) : flag + 2]
        done = hermes(tmp_path, *arguments)
    report = json.loads(done.stdout)
    assert (report["planned"], report["rows"]) == (len(FAILED) + len(ENDED), len(ENDED)), done.stderr
    causes = {row["key"]: row["cause"].partition(":")[0] for row in rows(tmp_path, file="failed.jsonl")}
    assert causes == dict.fromkeys(FAILED, "ProviderError") | {"content filter": "filtered"}
    stop_reasons = {row["key"]: row["outcome"]["stop_reason"] for row in rows(tmp_path)}
    assert stop_reasons == {name: stop_reason for name, (_, stop_reason) in ENDED.items()}
    for row in rows(tmp_path):
        assert row["completed"] is (row["outcome"]["stop_reason"] == "completed")
        assert row["conversations"][-1]["value"].strip() or not row["completed"]
