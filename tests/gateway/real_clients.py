"""The real agents: where they are installed, how they are started headless, what they wrote themselves."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hermes.config.load import Config
from hermes.core import Role, StepKind, Trajectory
from hermes.store import Reader
from tests.compat.venvs import VENVS, venv_python
from tests.data.sessions.clients import imported
from tests.gateway import client_requests
from tests.gateway.scripted import Json, ScriptedProvider

_NODE = "node@22"
"""What the agents need; it comes from npm as well, in case that of this machine is older."""
_LONGEST_RUN_S = 240
NODE_MODULES = VENVS.parent / "clients"


@dataclass(frozen=True)
class RealClient:
    name: str
    """As the record names it."""
    title: str
    protocol: str
    command: tuple[str, ...]
    pointed: str
    """How the preset points it at the gateway."""
    package: str = ""
    """Of a client that is installed by npm."""
    requirements: tuple[str, ...] = ()
    """Of a client that is installed by pip."""
    sessions: str | None = None
    """Where it writes its own record, below the user's home."""
    omits: str = ""
    """What its own record leaves out, or has in another form."""
    sub_agents: bool = False

    @property
    def program(self) -> str:
        return self.command[0]


CLIENTS = (
    RealClient(
        "claude-code",
        "Claude Code",
        "messages",
        ("claude", "-p", "{}", "--allowedTools", "Bash", "Task", "Agent"),
        "`ANTHROPIC_BASE_URL`",
        package="@anthropic-ai/claude-code",
        sessions=".claude/projects",
        omits="system prompt, reminders, tools; arguments as parsed",
        sub_agents=True,
    ),
    RealClient(
        "codex",
        "Codex",
        "responses",
        ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "{}"),
        "`-c model_provider=…` on its command line",
        package="@openai/codex",
        sessions=".codex/sessions",
        omits="tools; its base instructions have sections that were not sent",
        sub_agents=True,
    ),
    RealClient(
        "pi",
        "pi",
        "chat",
        ("pi", "-p", "{}"),
        "a models.json in a folder of its own, which shows the rest of yours (`PI_CODING_AGENT_DIR`)",
        package="@earendil-works/pi-coding-agent",
        sessions=".pi/agent/sessions",
        omits="arguments as parsed",
    ),
    RealClient(
        "opencode",
        "opencode",
        "chat",
        ("opencode", "run", "{}"),
        "`OPENCODE_CONFIG_CONTENT`",
        package="opencode-ai",
        sessions=".local/share/opencode/opencode.db",
        omits="system prompt, tools; arguments as parsed",
        sub_agents=True,
    ),
    RealClient(
        "mini-swe-agent",
        "mini-swe-agent",
        "chat",
        ("mini", "--yolo", "--exit-immediately", "--cost-limit", "0", "--task", "{}"),
        "`OPENAI_API_BASE`, `ANTHROPIC_API_BASE`",
        requirements=("mini-swe-agent", "mcp"),
    ),
    RealClient(
        "aider",
        "aider",
        "chat",
        (
            "aider",
            "--no-git",
            "--yes-always",
            "--no-show-model-warnings",
            "--no-analytics",
            "--message",
            "{}",
        ),
        "the same",
        requirements=("aider-chat",),
    ),
)


def program_folder(client: RealClient) -> Path:
    """The folder of its program, installed today or from HERMES_TEST_CLIENTS; skips where it cannot be."""
    if place := os.environ.get("HERMES_TEST_CLIENTS"):
        folders = (Path(place) / "node_modules" / ".bin", Path(place) / "bin")
        folder = next((folder for folder in folders if (folder / client.program).exists()), None)
        if folder is None:
            pytest.skip(f"{client.program} is not in {place}")
        return folder
    if client.requirements:
        return venv_python(client.name, *client.requirements).parent
    return _npm_folder(client)


def _npm_folder(client: RealClient) -> Path:
    """The newest release of the day, kept for the next run."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm")
    folder = NODE_MODULES / client.name
    folder.mkdir(parents=True, exist_ok=True)
    ready, today = folder / ".ready", f"{datetime.now(UTC):%Y-%m-%d} {client.package}"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.is_file() or ready.read_text() != today:
            words = [npm, "install", "--no-audit", "--no-fund", "--prefix", ".", _NODE]
            done = subprocess.run(
                [*words, f"{client.package}@latest"], cwd=folder, capture_output=True, text=True
            )
            if done.returncode:
                pytest.skip(f"npm cannot install {client.package} here: {done.stderr.strip()[-200:]}")
            ready.write_text(today)
    return folder / "node_modules" / ".bin"


def version_of(client: RealClient, folder: Path) -> str:
    done = subprocess.run(
        [str(folder / client.program), "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    version = re.search(r"\d+\.\d+(\.\d+)*", done.stdout + done.stderr)
    return version[0] if version else "unknown"


@dataclass(frozen=True)
class Run:
    client: RealClient
    config: Config
    user: Path
    """The home of its user, which is also its working folder."""

    def start(
        self, base_url: str, model: str, prompt: str, *words: str, passed_on: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        self.user.mkdir(exist_ok=True)
        environ = {
            **os.environ,
            "HERMES_HOME": str(self.config.home),
            "HOME": str(self.user),
            "PATH": f"{program_folder(self.client)}:{os.environ['PATH']}",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_SILENT_STARTUP": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            **variables,
        }
        for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
            environ.pop(name, None)
        options = ["--base-url", base_url, "--model", model]
        options += ["--protocol", self.client.protocol] if passed_on else []
        command = [word.format(prompt) for word in self.client.command]
        return subprocess.run(
            [sys.executable, "-m", "hermes", "record", *options, "--", *command, *words],
            cwd=self.user,
            env=environ,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_LONGEST_RUN_S,
        )

    def job(self, provider: ScriptedProvider, job: str, *, passed_on: bool = True) -> None:
        """A run against the script, which must end well."""
        done = self.start(provider.base_url, "custom/model-1", f"Please work. JOB-{job}", passed_on=passed_on)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "recorded: " in done.stderr, done.stderr
        if "HERMES_CLIENT_REQUESTS" in os.environ and passed_on:
            calls = [heard for heard in provider.requests if heard.method == "POST"]
            client_requests.write(f"{self.client.name}-{job}", calls, provider.replies, self.user)

    def own_record(self, folder: Path) -> list[Trajectory]:
        """The session that the client wrote itself, as `hermes import` reads it into an empty store."""
        assert self.client.sessions is not None
        db = folder / "own.db"
        done = imported(db, self.client.name, self.user / self.client.sessions)
        assert done.problems == []
        with Reader(db) as reader:
            return [reader.get(row.id) for row in reversed(reader.summaries(limit=1000))]


def as_compared(trajectory: Trajectory) -> list[Json]:
    """Each answer with its tokens, and each result: what both records must agree about."""
    return [
        {
            "kind": step.kind.value,
            "text": step.message.content,
            "thinking": step.message.reasoning,
            "calls": [
                (call.id, call.name, call.arguments if call.error else call.parsed())
                for call in step.message.tool_calls
            ],
            "of": step.message.tool_call_id,
            "tokens": (step.call.usage.prompt, step.call.usage.completion) if step.call else None,
        }
        for step in trajectory.steps
        if step.kind is not StepKind.INPUT
    ]


def check_same(own: Trajectory, recorded: Trajectory) -> None:
    """Both records are the same conversation; a client's own leaves out what it adds for the model."""
    assert as_compared(own) == as_compared(recorded)
    asked = [step.message.content for step in recorded.steps if step.kind is StepKind.INPUT]
    for text in (step.message.content for step in own.steps if step.message.role is Role.USER):
        assert any(text in question for question in asked), text
    if own.header.tools:  # a client that writes these writes its system prompt too
        assert sorted(own.header.tools) == sorted(recorded.header.tools)
        assert own.steps[0].message == recorded.steps[0].message


def question_of(trajectory: Trajectory) -> str:
    """What its user asked last before the first answer."""
    before = [step for step in trajectory.steps if step.kind is StepKind.INPUT]
    return next(step.message.content for step in reversed(before) if step.message.role is Role.USER)
