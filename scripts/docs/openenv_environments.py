"""Writes the section of docs/tasks.md on OpenEnv: which public environments run here, unmodified.

    python scripts/docs/openenv_environments.py FOLDER --python PATH

FOLDER has checkouts of public repositories, named OWNER+NAME, as they are; nothing is fetched here. Every
folder with a server/app.py below is an environment. PATH is an interpreter with openenv-core and with what
they import. A policy that calls each tool once, with the first values that its schema allows, plays
an episode of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from harbor_tasks import PAGE, reason

from hermes.core import Message, ToolCall
from hermes.envs.builtin.openenv import OpenEnvConfig, OpenEnvEnv
from hermes.envs.cli.sample_grader import ScriptedPolicy
from hermes.envs.servers.config import APIServerConfig
from hermes.errors import HermesError

HEADING = "## OpenEnv environments"
MOST_CALLS = 4
LIMIT_S = 60
MOST_AT_ONCE = 3
_VALUES = {"string": "1", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}


class Trial(NamedTuple):
    name: str
    tools: tuple[str, ...] = ()
    steps: int = 0
    reward: float | None = None
    problem: str = ""


def sample(schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """The first value that a schema allows."""
    if "$ref" in schema:
        return sample(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if options := schema.get("enum"):
        return options[0]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return sample(options[0], root)
    if schema.get("type") == "object" and "properties" in schema:
        return {name: sample(schema["properties"][name], root) for name in schema.get("required", ())}
    return schema.get("const", schema.get("minimum", _VALUES.get(schema.get("type", "string"), "1")))


async def play(folder: Path, name: str, python: Path, home: Path) -> Trial:
    server = APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="sglang", health_check=False)
    config = OpenEnvConfig(
        package=str(folder), python=str(python), use_wandb=False, episodes=1, start_patience_s=10
    )
    env = OpenEnvEnv(config, [server])
    try:
        async with asyncio.timeout(LIMIT_S):
            await env.setup()
            actions = env._actions
            turns = []
            for number in range(MOST_CALLS):
                action = actions[number % len(actions)]
                values = sample({**action.parameters, "type": "object"}, action.parameters)
                call = ToolCall(f"c{number}", action.name, json.dumps(values))
                turns.append(Message.assistant("", tool_calls=(call,)))
            env.rehearse(ScriptedPolicy((*turns, Message.assistant("Done."))), home)
            reward = (await env.run_item(await env.get_next_item())).reward
        return Trial(name, tuple(action.name for action in actions), int(reward.parts["steps"]), reward.value)
    except HermesError as error:
        text = error.message.replace(str(folder), folder.name)
        return Trial(name, problem=re.sub(r"https?://127\.0\.0\.1:\d+", "SERVER", text))
    except TimeoutError:
        return Trial(name, problem=f"no answer within {LIMIT_S} s")
    finally:
        await env.close()


def section(trials: list[Trial]) -> str:
    played = sum(trial.steps > 0 for trial in trials)
    repositories = len({trial.name.partition("/")[0] for trial in trials})
    lines = [
        HEADING,
        "",
        f"We tried {len(trials)} environments of {repositories} public repositories, their own files, with",
        f"openenv-core 0.3 on a CPU and without a network. {played} were played ([how](howto/openenv.md))",
        "by a policy that calls each tool once. `scripts/docs/openenv_environments.py` wrote this section.",
        "",
        "| repository | environment | tools | steps | reward | reason |",
        "|---|---|---|---|---|---|",
    ]
    for trial in sorted(trials):
        repository, _, path = trial.name.partition("/")
        reward = "-" if trial.reward is None else f"{trial.reward:g}"
        tools = ", ".join(trial.tools[:4]) + (" …" if len(trial.tools) > 4 else "")
        cells = [repository.replace("+", "/"), path or "/", tools or "-", str(trial.steps), reward]
        lines.append("| " + " | ".join([*cells, reason(trial.problem)]) + " |")
    return "\n".join(lines) + "\n"


async def trials_of(folder: Path, python: Path, home: Path) -> list[Trial]:
    slots = asyncio.Semaphore(MOST_AT_ONCE)

    async def play_in_turn(path: Path) -> Trial:
        async with slots:
            return await play(path, str(path.relative_to(folder)), python, home)

    paths = [path.parents[1] for path in sorted(folder.rglob("server/app.py"))]
    return await asyncio.gather(*map(play_in_turn, paths))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folder, python = arguments.folder.resolve(), arguments.python.absolute()
        trials = asyncio.run(trials_of(folder, python, Path(home)))
    rest = arguments.page.read_text("utf-8").partition(HEADING)[0].rstrip()
    arguments.page.write_text(f"{rest}\n\n{section(trials)}", "utf-8")


if __name__ == "__main__":
    main()
