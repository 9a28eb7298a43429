"""`hermes env new`: a template for an environment. It runs as it is, and passes `hermes env check`."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from hermes.errors import UsageError

_TEXT = Template('''\
"""$name: what this environment teaches, and how it is graded.

An example to replace: the agent adds up the numbers of a file and writes the sum into another.

    hermes env check $file
    hermes env process $file --openai.base_url http://localhost:8001/v1 --env.total_steps 2
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from hermes.core import Message, ToolCall
from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.result import AgentResult
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.agent.tool_context import ToolContext

Item = dict[str, Any]


class ${class_name}Config(HermesAgentEnvConfig):
    eval_size: int = Field(default=20, description="Tasks held out for evaluation.")
    seed: int = Field(default=0, description="Seed of the generated tasks.")


class $class_name(HermesAgentBaseEnv):
    """Adds up the numbers of a file."""

    name = "$name"
    env_config_cls = ${class_name}Config
    config: ${class_name}Config
    default_toolsets = ("terminal", "file")

    @classmethod
    def config_init(cls) -> tuple[${class_name}Config, list[APIServerConfig]]:
        config = cls.env_config_cls(tokenizer_name="hermes/smollm2", max_agent_turns=8)
        server = APIServerConfig(
            base_url="http://localhost:8001/v1", model_name="policy", server_type="sglang"
        )
        return config, [server]

    async def setup(self) -> None:
        chance = random.Random(self.config.seed)
        items = [{"id": str(n), "numbers": [chance.randint(2, 99) for _ in range(5)]} for n in range(200)]
        self._eval_items, self._items = items[: self.config.eval_size], items[self.config.eval_size :]
        self._next = 0

    async def get_next_item(self) -> Item:
        self._next += 1
        return self._items[(self._next - 1) % len(self._items)]

    async def eval_items(self) -> Sequence[Item]:
        return self._eval_items

    def format_prompt(self, item: Item) -> str:
        return "Add up the numbers in numbers.txt and write the sum, and nothing else, into sum.txt."

    def workspace_files(self, item: Item) -> Mapping[str, bytes]:
        return {"numbers.txt": "\\n".join(map(str, item["numbers"])).encode()}

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float:
        """1 if the file contains the sum. Raise if the answer cannot be graded: that is not a 0."""
        written = await ctx.read_file("sum.txt")
        return float(written.get("content", "").strip() == str(sum(item["numbers"])))

    def gold(self, item: Item) -> Sequence[Message]:
        """The turns of a perfect assistant; `hermes env check` plays them and expects 1.0."""
        total = str(sum(item["numbers"]))
        return [_call("write_file", path="sum.txt", content=total), Message.assistant(f"The sum is {total}.")]

    def exploits(self, item: Item) -> Mapping[str, Sequence[Message]]:
        """The turns of cheaters; none of them may earn more than saying nothing."""
        everything = " ".join(map(str, range(1000)))
        return {
            "all numbers at once": [_call("write_file", path="sum.txt", content=everything)],
            "only claims": [Message.assistant("Done: sum.txt holds the sum. Reward: 1.0")],
        }


def _call(name: str, **arguments: str) -> Message:
    return Message.assistant(tool_calls=(ToolCall("call_1", name, json.dumps(arguments)),))


if __name__ == "__main__":
    $class_name.cli()
''')


def write_template(name: str, folder: Path) -> Path:
    """Writes NAME.py into the folder; an existing file is not overwritten."""
    stem = name.strip().replace("-", "_").replace(" ", "_")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", stem) or keyword.iskeyword(stem):
        raise UsageError(
            f"'{name}' is not a valid name for an environment.",
            "Use letters, digits and underscores, a letter first.",
        )
    path = folder / f"{stem.lower()}.py"
    parts = [part[:1].upper() + part[1:] for part in stem.split("_")]
    class_name = "".join(parts).removesuffix("Env") + "Env"
    text = _TEXT.substitute(name=stem.lower(), class_name=class_name, file=path.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} already exists.", "Choose another name, or remove it.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", "Choose another --dir.") from error
    return path
