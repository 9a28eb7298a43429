"""`hermes improve --text file:AGENTS.md --agent …`: a project's file for its coding agent gets better."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hermes.core.texts import hashes
from hermes.store import Filter, Reader
from hermes.training.policy_registry import PolicyRegistry
from tests.cli.process import failure
from tests.fakes.provider import FakeProvider, text
from tests.policies.text_world import PLANTED, configured, tasks_file, world
from tests.rl.world import hermes

AGENT = """
import json, os, sys, urllib.request
from pathlib import Path
rules = Path("AGENTS.md").read_text()
messages = [{"role": "system", "content": rules}, {"role": "user", "content": sys.argv[1]}]
body = json.dumps({"model": "policy", "messages": messages}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, body, {"content-type": "application/json"})
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
Path("answer.txt").write_text(answer)
if not answer.isupper():
    sys.exit("I crash")
"""
TESTS = """#!/bin/sh
python3 -c 'import json, sys; sys.exit(open("answer.txt").read().strip() != json.load(sys.stdin)["expected"])'
"""


def command(folder: Path, *more: str) -> tuple[str, ...]:
    (folder / "agent.py").write_text(AGENT)
    (folder / "run-tests.sh").write_text(TESTS)
    (folder / "AGENTS.md").write_text("Work with care.\n")
    return (
        *("improve", "--text", "file:AGENTS.md", "--agent", f"{sys.executable} agent.py {{prompt}}"),
        *("--tasks", str(tasks_file(folder, 45)), "--reward", "run-tests.sh", *more),
    )


def test_the_file_of_a_project_is_evolved_against_its_tests(tmp_path: Path) -> None:
    proposals = tmp_path / "proposals.txt"
    proposals.write_text(f"Be brief.\n\n{PLANTED}\n")
    with FakeProvider(world(0)) as provider:
        home = configured(tmp_path / "home", provider)
        words = command(tmp_path, "--proposals", str(proposals), "--max-calls", "60", "--json")
        done = hermes(home, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout.splitlines()[-1])
        assert facts["promoted"] is True and facts["figures"]["cost_usd"] > 0, facts
        assert f"+{PLANTED}" in Path(str(facts["report"])).read_text()
        record = PolicyRegistry(home).current("fake/worker")
        assert record.texts == {"file:AGENTS.md": PLANTED} and record.base_model == "fake/worker"
        printed = hermes(home, "policy", "show", "--text", "file:AGENTS.md")
        assert printed.stdout == f"{PLANTED}\n"
        error, fix = failure(hermes(home, "policy", "show", "--text", "examples"), 2)
        assert "no text examples" in error and "file:AGENTS.md" in fix
        asked = len(provider.posts)
    assert (tmp_path / "AGENTS.md").read_text() == "Work with care.\n"  # the project's own is left alone
    with Reader(home / "hermes.db") as reader:
        headers = [entry.header for entry in reader.trajectories(Filter())]
    assert len(headers) == asked
    agents = {(header.metadata["agent"], header.model) for header in headers}
    assert agents == {("agent.py", "fake/worker")}
    assert hashes(record.texts) in [header.config["texts"] for header in headers]


@pytest.mark.parametrize(
    ("changed", "said", "to_do"),
    [
        (("--agent", "no-such-agent {prompt}"), "'no-such-agent' is not on this machine", "Install"),
        (("--agent", "python3 agent.py {task}"), "means nothing", "{prompt}"),
        (("--text", "system_prompt"), "its own system_prompt", "file:AGENTS.md"),
        (("--reward", "missing.sh"), "no file", "script"),
        (("--env", "calculator"), "needs tasks", "one of the two"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_spent(
    tmp_path: Path, changed: tuple[str, ...], said: str, to_do: str
) -> None:
    with FakeProvider([text("unused")]) as provider:
        home = configured(tmp_path / "home", provider)
        words = command(tmp_path, "--reflect-with", "fake/reflector", *changed)
        error, fix = failure(hermes(home, *words, cwd=tmp_path), 2)
        assert said in error and to_do in fix, (error, fix)
        assert provider.posts == []


def test_an_agent_needs_a_text_and_tests(tmp_path: Path) -> None:
    error, fix = failure(hermes(tmp_path, "improve", "--agent", "claude", cwd=tmp_path), 2)
    assert "--agent runs a program" in error and "--text file:AGENTS.md" in fix
    tasks = ("--tasks", str(tasks_file(tmp_path)), "--reflect-with", "fake/reflector")
    words = ("improve", "--text", "file:AGENTS.md", "--agent", "claude", *tasks)
    error, fix = failure(hermes(tmp_path, *words, cwd=tmp_path), 2)
    assert "tests score it" in error and "--reward" in fix


def test_an_agent_that_never_calls_its_model_is_named(tmp_path: Path) -> None:
    with FakeProvider([text("unused")]) as provider:
        home = configured(tmp_path / "home", provider)
        words = command(tmp_path, "--proposals", str(tmp_path / "run-tests.sh"), "--agent", "true")
        done = hermes(home, *words, cwd=tmp_path)
        assert done.returncode == 1 and "it never called its model" in done.stderr
        assert provider.posts == []
