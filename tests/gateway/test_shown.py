"""The tree of a recorded session, in the command line and in the web app."""

from __future__ import annotations

import re
from typing import Any

from hermes.config.load import Config
from hermes.core import Relation
from tests.gateway.conftest import gateway, hermes, stored
from tests.gateway.requests import post
from tests.gateway.scripted import Call, Json, Reply, ScriptedProvider, last_user_text
from tests.web.site import open_site

TOOLS = [{"name": "Task", "input_schema": {}}]
SUMMARY = "The tests were read, and one of them is wrong."


def script(body: Json) -> Reply:
    text = last_user_text(body)
    if "spawn" in text:
        return Reply("I delegate.", calls=(Call("Task", '{"prompt": "read the tests, please"}', "t1"),))
    return Reply(SUMMARY if "summarise" in text else f"answer to {text}")


def test_the_tree_of_a_session_is_shown(config: Config) -> None:
    session = {"x_claude_code_session_id": "s1", "user_agent": "claude-cli/2.1.5 (external)"}
    history: list[Any] = [{"role": "user", "content": "spawn"}]
    with ScriptedProvider(script) as provider, gateway(config, provider.url) as recording:

        def ask(messages: list[Any], tools: list[Any], **headers: str) -> None:
            body = {"model": "model-1", "messages": messages, "tools": tools}
            assert post(f"{recording.url}/v1/messages", body, **session, **headers)[0] == 200

        ask(history, TOOLS)
        ask([{"role": "user", "content": "read the tests, please"}], TOOLS, x_claude_code_agent_id="a1")
        call = {"type": "tool_use", "id": "t1", "name": "Task", "input": {}}
        history += [{"role": "assistant", "content": [{"type": "text", "text": "I delegate."}, call]}]
        history += [
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "x"}]}
        ]
        ask([*history, {"role": "user", "content": "go on"}], TOOLS)
        ask([*history, {"role": "user", "content": "otherwise"}], TOOLS)
        ask([*history, {"role": "user", "content": "summarise"}], [])
        ask([{"role": "user", "content": f"So far: {SUMMARY}"}], TOOLS)
    main, child, fork, summary, after = (trajectory.header for trajectory in stored(config))
    relations = [header.relation for header in (main, child, fork, summary, after)]
    assert relations == [None, Relation.DELEGATE, Relation.CONTINUED, Relation.SIDE, Relation.CONTINUED]
    with open_site(config.home) as site:
        page = site.get(f"/trajectories/{main.id}").text
        groups = dict(re.findall(r'<span class="dim">([a-z -]+)</span>(.*?)</span>\n  <', page, re.DOTALL))
        for header, group in ((child, "sub-agents"), (fork, "continued"), (summary, "side calls")):
            assert f'<a class="chip" href="/trajectories/{header.id}"' in groups[group]
        assert f'href="/trajectories/{main.id}"' in site.get(f"/trajectories/{child.id}").text
        listed = site.get("/trajectories?q=agent%3Dclaude-code").text
        assert len(re.findall(r"· (?:delegate|side|continued)", listed)) == 4
    for header in (child, fork, summary):
        assert header.relation is not None
        shown = hermes(config, config.home, "trajectories", "show", header.id).stdout
        assert f"{header.relation.value} of {main.id}" in shown
