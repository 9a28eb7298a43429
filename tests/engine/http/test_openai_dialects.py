"""Models that call tools in a dialect of their own (`--tool-parser`), and templates with settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from transformers import AutoTokenizer

from hermes.core import ToolCall
from hermes.models.parsers import get_parser
from tests.engine.http.engine_process import EOS, Server, launch
from tests.engine.http.openai_parts import (
    GREEDY,
    TOOLS,
    encode,
    make_chat_model,
    prompt_ids,
    public_client,
    teach,
)

TEMPLATE = (
    "{% if tools %}<s>tools\n{{ tools | tojson }}</s>{% endif %}"
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% if note is defined %}{{ note }}{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}"
)
QUESTION: list[Any] = [{"role": "user", "content": "2+3?"}]
PLAIN = "5, I think"


class Speaker(NamedTuple):
    server: Server
    folder: Path
    path: str
    """Weights that call the tool in their dialect, and answer plainly where there is none."""


@pytest.fixture(scope="module", params=["mistral", "qwen3_coder"])
def speaker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    folder = make_chat_model(tmp_path_factory.mktemp("models") / "dialect")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    server = launch(folder, tmp_path_factory.mktemp("engine"), "--tool-parser", request.param)
    base = str(folder)
    call = get_parser(request.param).render([ToolCall("call_1", "add", '{"a": 2, "b": 3}')])
    lessons = [
        (prompt_ids(server, base, QUESTION, tools=TOOLS), encode(folder, call)),
        (prompt_ids(server, base, QUESTION), encode(folder, PLAIN)),
    ]
    yield Speaker(server, folder, teach(server, base, lessons, "taught"))
    server.kill()


def test_the_template_offers_the_tools_and_the_call_is_read_in_the_models_dialect(speaker: Speaker) -> None:
    ids = prompt_ids(speaker.server, str(speaker.folder), QUESTION, tools=TOOLS)
    written = AutoTokenizer.from_pretrained(speaker.folder).decode(ids)
    assert written.startswith('<s>tools\n[{"type": "function", "function": {"name": "add"')
    client = public_client(speaker.server)
    for tools in (TOOLS, None):
        asked: dict[str, Any] = {"tools": tools} if tools else {}
        answer = client.chat.completions.create(
            model=speaker.path, messages=QUESTION, **GREEDY, **asked
        ).choices[0]
        calls = [one.function for one in answer.message.tool_calls or () if one.type == "function"]
        said = [(one.name, json.loads(one.arguments)) for one in calls]
        expected = [("add", {"a": 2, "b": 3})] if tools else []
        assert (said, answer.finish_reason) == (expected, "tool_calls" if tools else "stop")
        assert (answer.message.content or "") == ("" if tools else PLAIN)
    body = {"model": speaker.path, "messages": QUESTION, "tools": TOOLS, "stream": True, **GREEDY}
    lines = speaker.server.ask("POST", "/v1/chat/completions", body).body.decode().split("\n\n")[:-2]
    deltas = [json.loads(one.removeprefix("data: "))["choices"][0]["delta"] for one in lines]
    (streamed,) = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert (streamed["name"], json.loads(streamed["arguments"])) == ("add", {"a": 2, "b": 3})
    assert "".join(delta.get("content", "") for delta in deltas) == ""


def test_settings_of_the_template_reach_it_and_cannot_write_control_tokens(speaker: Speaker) -> None:
    def ids(**settings: Any) -> list[int]:
        return prompt_ids(
            speaker.server, str(speaker.folder), QUESTION, chat_template_kwargs=settings or None
        )

    plain = ids()
    assert ids(enable_thinking=True) == ids(unknown=1.5) == plain
    assert ids(enable_thinking=False) == [*plain, *encode(speaker.folder, "<think>\n\n</think>\n\n")]
    noted = ids(note="</s>hi")
    assert noted.count(EOS) == plain.count(EOS)
    assert len(noted) == len(plain) + len("</s>hi")
    for bad, words in (({"tokenize": True}, "'tokenize' is not a variable"), ({"x": [1]}, "chat_template")):
        body = {"model": str(speaker.folder), "messages": QUESTION, "chat_template_kwargs": bad}
        refused = speaker.server.ask("POST", "/v1/chat/completions", body)
        assert (refused.status, words in refused.json()["error"]["message"]) == (400, True)
