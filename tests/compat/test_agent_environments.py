"""Agent environments written for the reference: its imports, its loop and its ToolContext."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.provider import FakeProvider, Reply, text, tool_calls

CAPITALS = Path(__file__).parent / "environments" / "capitals.py"
IMPORTS = Path(__file__).parents[2] / "recipes" / "imports"
TOWNS = {"France": "Paris", "Peru": "Lima", "Kenya": "Nairobi", "Japan": "Tokyo"}


def knows(request: dict[str, Any]) -> Reply:
    """Writes the right town into the file, then says so."""
    if request["messages"][-1]["role"] == "tool":
        return text("Done.")
    land = re.search(r"capital of (\w+)", request["messages"][-1]["content"])
    assert land, request["messages"]
    return tool_calls([("write_file", {"path": "answer.txt", "content": TOWNS[land[1]]})])


def run_env(way: str, folder: Path, bundled: Path, mode: str, *flags: str) -> str:
    """Runs the file in a folder `environments`; what it writes to standard error. It has to end well."""
    file = copied(folder)
    home = folder / "home"
    home.mkdir()
    (home / "models").symlink_to(bundled / "models")
    command = {
        "python": ("-m", "hermes.compat", str(file), mode),
        "plain python": (str(file), mode),
        "hermes env": ("-m", "hermes", "env", mode, str(file)),
    }[way]
    passed_on = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    search_path = {"PYTHONPATH": str(IMPORTS)} if way == "plain python" else {}
    done = subprocess.run(
        [
            sys.executable,
            *command,
            "--env.tokenizer_name",
            "hermes/smollm2",
            "--env.use_wandb",
            "false",
            *flags,
        ],
        env={**passed_on, "HERMES_HOME": str(home), **search_path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_the_two_import_names_are_a_package(tmp_path: Path) -> None:
    """`hermes-research[atropos]`: built by pip, which needs an index that has hatchling."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "site"))
    subprocess.run([*pip, str(IMPORTS)], check=True, timeout=300)
    program = "import environments.hermes_base_env; from atroposlib.envs.base import BaseEnv; print(BaseEnv)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "hermes.envs.base.BaseEnv" in done.stdout, done.stderr
    extras = tomllib.loads((IMPORTS.parents[1] / "pyproject.toml").read_text())["project"]
    name = tomllib.loads((IMPORTS / "pyproject.toml").read_text())["project"]["name"]
    assert any(entry.startswith(name) for entry in extras["optional-dependencies"]["atropos"])


def copied(folder: Path) -> Path:
    """The environment, in a folder of a user's."""
    (folder / "environments").mkdir()
    return shutil.copy(CAPITALS, folder / "environments" / "capitals.py")


def server(provider: FakeProvider) -> tuple[str, ...]:
    model = ("--openai.model_name", "fake", "--openai.server_type", "openai")
    return ("--openai.base_url", provider.base_url, *model, "--openai.health_check", "false")


@pytest.mark.parametrize("way", ["python", "plain python", "hermes env"])
def test_the_file_as_it_stands_writes_scored_groups(way: str, tmp_path: Path, bundled_home: Path) -> None:
    output = tmp_path / "output.jsonl"
    flags = ("--env.total_steps", "1", "--env.group_size", "2", "--env.data_path_to_save_groups", str(output))
    with FakeProvider(knows) as provider:
        run_env(way, tmp_path, bundled_home, "process", *flags, *server(provider))
    (group,) = [json.loads(line) for line in output.read_text().splitlines()]
    assert group["scores"] == [1.0, 1.0]


@pytest.mark.parametrize("way", ["python", "hermes env"])
def test_its_own_evaluate_runs_the_agent_loop_and_looks_into_the_sandbox(
    way: str, tmp_path: Path, bundled_home: Path
) -> None:
    folder = tmp_path / "evals"
    flags = ("--env.eval_size", "2", "--env.data_dir_to_save_evals", str(folder))
    with FakeProvider(knows) as provider:
        said = run_env(way, tmp_path, bundled_home, "evaluate", *flags, *server(provider))
        assert len(provider.posts) == 4, "two questions, two turns each"
        offered = {tool["function"]["name"] for tool in provider.posts[0].json["tools"]}
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["results"]["all"]["eval/mean_reward"] == 1.0
    assert "write_file" in offered and "terminal" not in offered
    assert "never awaited" not in said and "Task was destroyed" not in said


def test_modules_of_the_users_own_folder_stay_and_only_the_references_are_answered(tmp_path: Path) -> None:
    copied(tmp_path)
    program = (
        "from hermes.compat import atropos; atropos.install()\n"
        "from environments.capitals import CapitalsEnv\n"
        "from environments.tool_call_parsers import get_parser, list_parsers\n"
        "import environments\n"
        "print('OK', CapitalsEnv.name, 'hermes' in list_parsers(), list(environments.__path__))\n"
        "try:\n    import environments.nothing\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        f"OK capitals True {[str(tmp_path / 'environments')]}",
        "No module named 'environments.nothing'",
    ], done.stderr


def test_plain_python_finds_the_references_modules_and_the_users_own(tmp_path: Path) -> None:
    copied(tmp_path)
    program = tmp_path / "my_program.py"
    program.write_text(
        "from environments.agent_loop import HermesAgentLoop\n"
        "from environments.capitals import CapitalsEnv\n"
        "import atroposlib.envs.base\n"
        "from atroposlib.type_definitions import Message\n"
        "print('OK', CapitalsEnv.name, HermesAgentLoop.__module__, atroposlib.envs.base.BaseEnv.__module__)\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(IMPORTS)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "OK capitals hermes.compat.agent_loop hermes.envs.base\n", done.stderr


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "the last message does not have the role user"),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            "does not have the role user",
        ),
        ([{"role": "tool", "content": "a"}], "the role 'tool'"),
    ],
)
async def test_a_loop_says_what_it_cannot_begin_with(messages: list[dict[str, str]], error: str) -> None:
    from hermes.compat.agent_loop import HermesAgentLoop, OriginalAgentEnv, TaskToolContext
    from hermes.envs.agent.config import HermesAgentEnvConfig
    from hermes.envs.servers.config import APIServerConfig
    from hermes.errors import UsageError

    class Blank(OriginalAgentEnv):
        async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
            return 0.0

    config = APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="openai", health_check=False)
    env = Blank(HermesAgentEnvConfig(use_wandb=False), [config])
    with pytest.raises(UsageError, match=error):
        await HermesAgentLoop(server=env.server).run(messages)
    with pytest.raises(UsageError, match="belong to no environment"):
        HermesAgentLoop(server=config)
    with pytest.raises(UsageError, match="task id 'x'"):
        TaskToolContext("x")
    await env.close()
