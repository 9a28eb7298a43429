"""The real agents, headless, through the gateway, against a scripted provider.

`make nightly` installs them from npm into a folder of the test run; where there is no npm or no network the
tests are skipped. HERMES_TEST_CLIENTS names a folder in which they are installed already.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.config.load import Config
from hermes.core import Relation, StepKind
from tests.gateway.conftest import stored
from tests.gateway.scripted import Call, Json, Reply, ScriptedProvider, texts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PACKAGES = ("@anthropic-ai/claude-code", "@openai/codex", "@mariozechner/pi-coding-agent")
SHELLS = {"bash": "command", "exec_command": "cmd", "shell": "command"}
SPAWNS = {"task": "prompt", "agent": "prompt", "spawn_agent": "message"}
COMMANDS = {
    "claude": ("claude", "-p", "{}", "--allowedTools", "Bash", "Task", "Agent"),
    "codex": ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "{}"),
    "pi": ("pi", "-p", "{}"),
}
PROTOCOLS = {"claude": "messages", "codex": "responses", "pi": "chat"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the agents' programs."""
    if folder := os.environ.get("HERMES_TEST_CLIENTS"):
        return Path(folder) / "node_modules" / ".bin"
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm")
    place = tmp_path_factory.mktemp("clients")
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", *PACKAGES], cwd=place, capture_output=True
    )
    if done.returncode:
        pytest.skip("npm cannot install the agents here")
    return place / "node_modules" / ".bin"


def tool_names(body: Json) -> dict[str, str]:
    """The names of the tools on offer, by their lower-case form."""
    tools = [inner for tool in body.get("tools") or () for inner in (tool.get("tools") or [tool])]
    names = [tool.get("name") or (tool.get("function") or {}).get("name") or "" for tool in tools]
    return {name.lower(): name for name in names}


def script(body: Json) -> Reply:
    """By the last JOB in the prompt, and by how many results there are: a tool, two tools, sub-agents."""
    items = body.get("input") or body.get("messages") or []
    kinds = [item.get("type") or item["role"] for item in items if isinstance(item, dict)]
    results = sum("output" in kind or kind == "tool" for kind in kinds)
    results += str(items).count("'tool_result'")
    jobs = re.findall(r"JOB-(\w+)", " ".join(text for item in items for text in texts(item.get("content"))))
    names = tool_names(body)
    shell = next((name for name in SHELLS if name in names), None)
    spawn = next((name for name in SPAWNS if name in names), None)
    if not jobs or results or shell is None:
        return Reply("All done.", prompt_tokens=1000 + results)
    oddly_spaced = json.dumps(
        {SHELLS[shell]: "echo hello", "description": "say hello"}, separators=(",  ", " :")
    )
    command = Call(names[shell], oddly_spaced)
    if jobs[-1] == "agents" and spawn:
        task = {SPAWNS[spawn]: "Please do the small job. JOB-tool"}
        if spawn != "spawn_agent":
            task |= {"description": "small job", "subagent_type": "general-purpose"}
        arguments = json.dumps(task)
        return Reply("I delegate.", calls=(Call(names[spawn], arguments),))
    count = 2 if jobs[-1] == "two" else 1
    return Reply("I look.", calls=(command,) * count)


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider(script) as scripted:
        yield scripted


def run(
    config: Config,
    folder: Path,
    programs: Path,
    provider: ScriptedProvider,
    job: str,
    client: str,
    *,
    passed_on: bool = True,
) -> None:
    words = COMMANDS[client]
    (folder / "user").mkdir()
    environ = {
        **os.environ,
        "HERMES_HOME": str(config.home),
        "HOME": str(folder / "user"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    options = ["--base-url", provider.base_url, "--model", "custom/model-1"]
    options += ["--protocol", PROTOCOLS[client]] if passed_on else []
    command = [word.format(f"Please work. JOB-{job}") for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "hermes", "record", *options, "--", *command],
        cwd=folder / "user",
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert "All done." in done.stdout and "recorded: " in done.stderr


@pytest.mark.parametrize("translate", [False, True], ids=["passed-on", "translated"])
@pytest.mark.parametrize("job", ["tool", "two"])
@pytest.mark.parametrize("client", COMMANDS)
def test_a_task_with_tools(
    config: Config,
    tmp_path: Path,
    programs: Path,
    provider: ScriptedProvider,
    client: str,
    job: str,
    translate: bool,
) -> None:
    run(config, tmp_path, programs, provider, job, client, passed_on=not translate)
    (main,) = [trajectory for trajectory in stored(config) if trajectory.header.relation is None]
    kinds = [step.kind for step in main.steps if step.kind is not StepKind.INPUT]
    results = [StepKind.TOOL] * (2 if job == "two" else 1)
    assert kinds == [StepKind.MODEL, *results, StepKind.MODEL]
    assert all("hello" in step.message.content for step in main.steps if step.kind is StepKind.TOOL)
    assert main.answer == "All done." and main.header.metadata["agent_version" if client != "pi" else "agent"]


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_a_sub_agent_has_a_parent(
    config: Config, tmp_path: Path, programs: Path, provider: ScriptedProvider, client: str
) -> None:
    run(config, tmp_path, programs, provider, "agents", client)
    relations = {trajectory.header.relation: trajectory for trajectory in stored(config)}
    assert relations[Relation.DELEGATE].header.parent_id == relations[None].header.id
