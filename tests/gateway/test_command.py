"""`hermes record`, as people type it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.config.load import Config
from hermes.core import Relation
from hermes.gateway.presets import PRESETS, Target, prepare, shell_lines, with_lines
from tests.gateway.conftest import hermes, serving, stored
from tests.gateway.scripted import Call, Json, Reply, ScriptedProvider

HERMES = str(Path(sys.executable).with_name("hermes"))
CHAT_TWICE = """
import json, os, sys, urllib.request
history = [{"role": "user", "content": "list the files"}]
tools = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
for _ in range(2):
    body = {"model": "model-1", "messages": history, "tools": tools}
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    answer = json.load(urllib.request.urlopen(request))
    message = answer["choices"][0]["message"]
    history.append(message)
    for call in message.get("tool_calls", ()):
        open("new.txt", "w").write("made by the agent\\n")
        history.append({"role": "tool", "tool_call_id": call["id"], "content": "a.py"})
print("the agent says", message["content"])
sys.exit(7)
"""


def script(body: Json) -> Reply:
    if any(message["role"] == "tool" for message in body["messages"]):
        return Reply("All done.")
    return Reply("I look.", calls=(Call("bash", '{"command": "ls"}'),))


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider(script) as scripted:
        yield scripted


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(folder)]
    (folder / "a.py").write_text("one\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *words], check=True)
    (folder / "a.py").write_text("two\n")
    return folder


def test_a_command_is_recorded(config: Config, provider: ScriptedProvider, project: Path) -> None:
    command = ["--", sys.executable, "-c", CHAT_TWICE]
    done = hermes(config, project, "record", "--base-url", provider.base_url, "--run", "mine", *command)
    assert done.returncode == 7
    assert done.stdout == "the agent says All done.\n"
    terms, line = done.stderr.splitlines()
    assert "terms" in terms
    (trajectory,) = stored(config)
    assert line == (
        f"recorded: 2 calls, 214 tokens, cost unknown; hermes trajectories show {trajectory.header.id}"
    )
    assert [step.kind.value for step in trajectory.steps] == ["input", "model", "tool", "model"]
    header = trajectory.header
    assert header.metadata["exit_code"] == 7 and header.run_id == "mine"
    before, after = header.config["git_before"], header.config["git_after"]
    assert before["commit"] == after["commit"] and len(before["commit"]) == 40
    assert "+two" in before["diff"] and "made by the agent" not in before["diff"]
    assert "+two" in after["diff"] and "+made by the agent" in after["diff"]
    status = ["git", "-C", str(project), "status", "--porcelain"]
    assert subprocess.run(status, capture_output=True, text=True, check=True).stdout == (
        " M a.py\n?? new.txt\n"
    )
    again = hermes(config, project, "record", "--base-url", provider.base_url, *command)
    assert "terms" not in again.stderr
    assert all(request.headers["authorization"].startswith("Bearer hermes") for request in provider.requests)


def test_the_clients_own_account_is_used_where_no_provider_is_named(
    config: Config, provider: ScriptedProvider, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", provider.base_url)
    done = hermes(config, project, "record", "--", sys.executable, "-c", CHAT_TWICE)
    assert done.returncode == 7
    assert provider.requests[-1].headers["authorization"] == "Bearer sk-own-0123456789"
    listed = hermes(config, project, "trajectories", "list", "--source", "record", "--json")
    assert json.loads(listed.stdout)[0]["model"] == "openai/model-1"


def test_a_recording_within_a_recording_is_recorded_once(
    config: Config, provider: ScriptedProvider, project: Path
) -> None:
    inner = [sys.executable, "-m", "hermes", "record", "--", sys.executable, "-c", CHAT_TWICE]
    done = hermes(config, project, "record", "--base-url", provider.base_url, "--", *inner)
    assert done.returncode == 7
    assert "recorded: 2 calls" in done.stderr and "recorded by the gateway at http://127" in done.stderr
    (trajectory,) = stored(config)
    assert trajectory.turns == 2 and len(provider.requests) == 2


def test_a_gateway_that_runs_already_is_used_where_it_is_named(
    config: Config, provider: ScriptedProvider, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(config, "--base-url", provider.base_url) as url:
        monkeypatch.setenv("HERMES_RECORD_URL", url)
        for _ in range(2):
            done = hermes(config, project, "record", "--", sys.executable, "-c", CHAT_TWICE)
            assert done.returncode == 7 and f"recorded by the gateway at {url}" in done.stderr
    first, second = stored(config)  # two commands are two recordings, though their histories are equal
    assert first.header.session_id != second.header.session_id and first.turns == second.turns == 2
    monkeypatch.setenv("HERMES_RECORD_URL", "nonsense")
    refused = hermes(config, project, "record", "--", "true")
    assert refused.returncode == 2 and "HERMES_RECORD_URL" in refused.stderr


def test_a_command_that_calls_no_model_or_does_not_exist(
    config: Config, provider: ScriptedProvider, project: Path
) -> None:
    silent = hermes(config, project, "record", "--", "sh", "-c", "exit 3")
    assert silent.returncode == 3 and "no call of a model" in silent.stderr
    absent = hermes(config, project, "record", "--", "no-such-agent")
    assert absent.returncode == 2 and "no program 'no-such-agent'" in absent.stderr
    assert hermes(config, project, "record").returncode == 2


def test_queries_select_by_the_agent(config: Config, provider: ScriptedProvider, project: Path) -> None:
    """Its name comes from its user agent; two calls of one session, one of them a title."""
    title = 'import json,os,urllib.request\nfor tools in ([{"name": "Bash"}], []):\n'
    title += (
        '  body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}],'
        ' "tools": tools}\n'
        '  headers = {"user-agent": "claude-cli/2.1.5 (external)", "x-claude-code-session-id": "s1"}\n'
        '  url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"\n'
        "  urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()\n"
    )
    done = hermes(
        config, project, "record", "--base-url", provider.base_url, "--", sys.executable, "-c", title
    )
    assert done.returncode == 0 and done.stderr.endswith(", and 1 beside it\n")
    main, side = stored(config)
    assert main.header.metadata == {"agent": "claude-code", "agent_version": "2.1.5", "exit_code": 0}
    assert side.header.relation is Relation.SIDE and side.header.parent_id == main.header.id
    assert side.header.session_id == "s1"
    shown = hermes(config, project, "trajectories", "list").stdout.splitlines()
    assert "agent" in shown[0] and all("claude-code" in line for line in shown[1:3])
    for agent, count in (("claude-code", 2), ("codex", 0)):
        listed = hermes(config, project, "trajectories", "list", "--agent", agent, "--json")
        assert len(json.loads(listed.stdout)) == count
        out = project / f"{agent}.jsonl"
        words = ("export", "--where", f"agent={agent}", "--all", "--output", str(out))
        hermes(config, project, *words)
        assert (len(out.read_text().splitlines()) if out.exists() else 0) == count


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.agent)
def test_presets_point_at_the_gateway(
    preset: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    program = preset.programs[0]  # type: ignore[attr-defined]
    target = Target("http://127.0.0.1:1/r/KEY", "model-1", own_key=False)
    launch = prepare([program, "-p", "x"], target, tmp_path)
    spelled = " ".join([*launch.command, *launch.variables.values()])
    spelled += "".join(path.read_text() for path in tmp_path.glob("models.json"))
    assert "http://127.0.0.1:1/r/KEY" in spelled and "model-1" in spelled
    assert launch.command[0] == program and launch.command[-2:] == ("-p", "x")
    assert "127.0.0.1" in launch.variables["NO_PROXY"]


def test_install_and_undo(config: Config, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.setenv("SHELL", "/bin/bash")
    start_file = project / ".bashrc"
    start_file.write_text("export A=1\n")
    lines = shell_lines(["claude"], HERMES)
    shown = hermes(config, project, "record", "--install", "--", "claude")
    assert lines in shown.stdout
    assert "undo" in shown.stderr and start_file.read_text() == "export A=1\n"
    refused = hermes(config, project, "record", "--install", "--write", "--", "claude", text="n\n")
    assert refused.returncode == 0 and start_file.read_text() == "export A=1\n"
    for _ in range(2):
        hermes(config, project, "record", "--install", "--write", "--", "claude", text="y\n")
        assert start_file.read_text() == "export A=1\n" + lines
    hermes(config, project, "record", "--install", "--remove", text="y\n")
    assert start_file.read_text() == "export A=1\n"


def test_a_shell_reads_the_file_that_is_written(
    config: Config, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project))
    for shell, path in (("fish", ".config/fish/config.fish"), ("zsh", ".zshrc"), ("dash", ".profile")):
        monkeypatch.setenv("SHELL", f"/bin/{shell}")
        hermes(config, project, "record", "--install", "--write", "--", "pi", text="y\n")
        assert (project / path).read_text() == shell_lines(["pi"], HERMES, shell)
    refused = hermes(config, project, "record", "--install", "--", "pi; ls")
    assert refused.returncode == 2 and "'pi; ls' is not the name of a program" in refused.stderr
    refused = hermes(config, project, "record", "--write")
    assert refused.returncode == 2 and "belong to --install" in refused.stderr


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_the_lines_record_where_hermes_is_and_run_the_program_where_it_is_not(
    shell: str, tmp_path: Path
) -> None:
    """No program of that name is on the PATH: an environment that is not active is the usual case."""
    names = ["pi", "mini-swe-agent"]  # dash would refuse the whole file for the second
    for name in names:
        _script(tmp_path / name, f'echo "{name}: $@"')
    place = tmp_path / "an environment" / "hermes"
    place.parent.mkdir()
    start = tmp_path / "start"
    start.write_text(shell_lines(names, str(place), shell))

    def said(command: str) -> str:
        words = [shutil.which(shell) or pytest.skip(f"there is no {shell}"), "-c", f". {start}; {command}"]
        environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        return subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout

    assert said('pi -p "a b"') == "pi: -p a b\n"
    _script(place, 'shift; shift; echo "recorded: $@"')
    assert said('pi -p "a b"') == "recorded: pi -p a b\n"
    assert said("mini-swe-agent x").startswith("recorded" if shell == "bash" else "mini-swe-agent: x")


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def test_the_lines_of_a_start_file_are_replaced_and_nothing_else() -> None:
    text = "a\n" + shell_lines(["pi"], HERMES) + "b\n"
    assert with_lines(text, shell_lines(["codex"], HERMES)).count(">>>") == 2
    assert with_lines(text, "") == "a\nb\n"
