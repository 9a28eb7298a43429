"""Servers and environments for the tests of OpenEnv."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes.core import Message, ToolCall
from hermes.envs.builtin.openenv import OpenEnvConfig, OpenEnvEnv
from hermes.envs.cli.sample_grader import ScriptedPolicy
from hermes.envs.servers.config import APIServerConfig
from tests.compat.venvs import pip, venv_python

FOLDER = Path(__file__).parent


@contextmanager
def served(environment: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`hermes env openenv` as a process; its address."""
    command = [sys.executable, "-m", "hermes", "env", "openenv", "--port", "0", *options, str(environment)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " at http://" in line, line
        yield line.split()[-1], process
    finally:
        process.kill()
        process.wait()


def call(tool: str, **arguments: object) -> Message:
    return Message.assistant("", tool_calls=(ToolCall("c", tool, json.dumps(arguments)),))


async def opened(home: Path, *turns: Message, **settings: Any) -> OpenEnvEnv:
    """Set up, with a policy that says these turns in each rollout."""
    server = APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="sglang", health_check=False)
    env = OpenEnvEnv(OpenEnvConfig(use_wandb=False, episodes=4, **settings), [server])
    try:
        await env.setup()
    except BaseException:
        await env.close()
        raise
    env.rehearse(ScriptedPolicy(turns), home)
    return env


def package_python() -> Path:
    """An interpreter with openenv-core, without its web pages and its command line."""
    parts = ("fastapi", "uvicorn", "websockets", "fastmcp", "requests", "httpx", "pydantic", "pyyaml")
    path = venv_python("openenv", *parts)
    if not list(path.parent.parent.glob("lib/*/site-packages/openenv")):
        pip(path, "install", "--no-deps", "openenv-core==0.3.0")
    return path
