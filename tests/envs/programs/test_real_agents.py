"""Agents of others as they are, in the training loop: LangGraph with two roles, Agent Lightning's examples.

Nightly: the packages come from PyPI, into environments under .compat, and the examples from GitHub, or from
the checkout in HERMES_TEST_AGENT_LIGHTNING. Where neither can be had the test is skipped.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from hermes.config.paths import db_path
from hermes.core.sequence import MASKED
from hermes.store import Reader
from tests.compat.venvs import venv_python
from tests.envs.programs.policy import END, TURNS, Make, group_of, policy
from tests.envs.token_source import Words
from tests.fakes.provider import FakeProvider, text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("home")]
_COMMIT = "c632d8dd804103bd421c65208bc501952689039f"
"""Of Agent Lightning 1.0.2."""
_FILES = ("calc_x/calc_agent.py", "calc_x/eval_utils.py", "gsm8k/gsm8k_agent.py")
_START = """
import asyncio, importlib, json, os, sys

folder, module, agent, task = sys.argv[1:]
os.environ.update(json.loads(task))
base = os.environ["HERMES_BASE_URL"]
os.environ.update(AGL_KEY="none", AGL_OPENAI_BASE_URL=f"{base}/v1", AGL_EVENT_URL=f"{base}/reward")
sys.path.insert(0, folder)
asyncio.run(getattr(importlib.import_module(module), agent)().run())
"""
"""Sets the variables that its controller would, and starts the agent."""
_CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "6*7"}}\n</tool_call>'


@dataclass(frozen=True)
class Example:
    folder: str
    module: str
    agent: str
    packages: tuple[str, ...]
    turns: tuple[str, ...]
    """What the policy says."""
    sequences: int = 1
    """AutoGen asks for its last answer without tools: that call counts as beside the task, unless it is asked
    for, and begins a sequence."""


EXAMPLES = (
    Example(
        "calc_x",
        "calc_agent",
        "Agent",
        ("autogen-agentchat", "autogen-ext[openai,mcp]", "mcp-server-calculator", "sympy"),
        (f"I calculate.\n{_CALL}{END}", f"### ANSWER: 42 ###{END}"),
        sequences=2,
    ),
    Example(
        "gsm8k", "gsm8k_agent", "ChatAgent", ("openai", "httpx"), (f"6 * 7 is 42. ### ANSWER: 42 ###{END}",)
    ),
)


def wrapped(folder: Path, python: Path, words: str) -> Path:
    """A program that runs the interpreter of another environment."""
    script = folder / "agent.sh"
    script.write_text(f"#!/bin/sh\nexport PATH={python.parent}:$PATH\nexec {words}\n")
    script.chmod(0o755)
    return script


def shown(python: Path, *more: Path) -> list[str]:
    """What an interpreter of a virtual environment needs."""
    base = Path(os.path.realpath(python)).parents[1]
    return [str(path) for path in (python.parents[1], base, *more)]


async def test_of_a_langgraph_agent_with_two_roles_one_is_trained(
    make: Make, words: Words, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = venv_python("langgraph", "langgraph", "langchain-openai")
    roles = Path(__file__).with_name("roles.py")
    program = wrapped(tmp_path, python, f'python {roles} lab/large worker "$1"')
    with FakeProvider([text("Write 7.")], loop=True) as provider, policy(words, *TURNS) as server:
        monkeypatch.setenv("HERMES_PROVIDERS__LAB__BASE_URL", provider.base_url)
        env = make(
            server,
            program=program,
            agent_paths=shown(python, roles),
            train_model="worker",
            terminal_lifetime=240,
        )
        group = await group_of(env)
        assert {request.json["model"] for request in provider.posts} == {"large"}
    assert group["scores"] == [1.0, 1.0]
    spoken = [token for turn in TURNS for token in words.encode(turn)]
    for masks in group["masks"]:
        assert [mask for mask in masks if mask != MASKED] == spoken
    with Reader(db_path(home)) as reader:
        facts = [reader.get(row.id).header.metadata for row in reader.summaries()]
    counted = {(fact["calls"], fact["calls_to_others"]) for fact in facts if "calls" in fact}
    assert counted == {(3, 1)}


def agent_lightning(folder: Path) -> Path:
    """The folder of its examples."""
    if checkout := os.environ.get("HERMES_TEST_AGENT_LIGHTNING"):
        return Path(checkout) / "examples"
    for name in _FILES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        address = f"https://raw.githubusercontent.com/microsoft/agent-lightning/{_COMMIT}/examples/{name}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                path.write_bytes(answer.read())
        except (urllib.error.URLError, TimeoutError) as error:
            pytest.skip(f"Agent Lightning cannot be had: {error}")
    return folder


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.module)
async def test_agent_lightnings_examples_are_trained_unmodified(
    make: Make, words: Words, home: Path, tmp_path: Path, example: Example
) -> None:
    python = venv_python(example.module, *example.packages)
    folder = agent_lightning(tmp_path / "examples") / example.folder
    start = tmp_path / "start.py"
    start.write_text(_START)
    program = wrapped(tmp_path, python, f'python {start} {folder} {example.module} {example.agent} "$1"')
    tasks = tmp_path / "questions.jsonl"
    question = json.dumps({"QUESTION": "What is 6 * 7?", "RESULT": "42", "ANSWER": "42"})
    tasks.write_text(json.dumps({"prompt": question}) + "\n")
    with policy(words, *example.turns) as server:
        env = make(
            server,
            program=program,
            agent_paths=shown(python, folder, start),
            dataset_name=str(tasks),
            reward="program",
            train_side_calls=True,
            terminal_lifetime=240,
            max_token_length=3000,
        )
        group = await group_of(env)
    assert group["scores"] == [1.0] * 2 * example.sequences, "as the agent itself posted it"
    spoken = [token for turn in example.turns for token in words.encode(turn)]
    trained = [mask for masks in group["masks"] for mask in masks if mask != MASKED]
    assert trained == spoken * 2, "each answer once"
    with Reader(db_path(home)) as reader:
        facts = [reader.get(row.id).header.metadata for row in reader.summaries()]
    main = [fact for fact in facts if "calls" in fact]
    counted = {(fact["calls"], fact["sequences"], fact["answers_foreign"]) for fact in main}
    # A history that comes back with other tools is text in a context of its own.
    assert counted == {(len(example.turns), example.sequences, example.sequences - 1)}
