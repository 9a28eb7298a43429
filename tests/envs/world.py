"""A small world for agent environments: a home, a scripted policy behind a real server, a few tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.paths import db_path
from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.servers.config import APIServerConfig
from hermes.store import Filter, Reader
from tests.envs.token_source import Answer, TokenServer, said

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Says = Callable[[str], str]
"""The prompt as text → what the policy says."""


def call(name: str, **arguments: object) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def policy(tokenizer: PreTrainedTokenizerBase, says: Says) -> TokenServer:
    """A server whose model answers by rule."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    def answer(prompt_ids: list[int], params: dict[str, Any]) -> Answer:
        text = says(tokenizer.decode(prompt_ids))
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], end]
        return said(ids[: params.get("max_new_tokens", len(ids))])

    return TokenServer(answer)


def after(prompt: str) -> str:
    """What stands behind the last user message: the rollout so far."""
    return prompt.rpartition("<|im_start|>user\nTask:")[2]


def writes(word: str) -> Says:
    """A policy that writes a word, then says so."""

    def says(prompt: str) -> str:
        if "tool_response" in after(prompt):
            return "It is written."
        return call("write_file", path="out.txt", content=word)

    return says


def stored(home: Path) -> list[Any]:
    """The trajectories that environments have left in the store."""
    with Reader(db_path(home)) as reader:
        return list(reader.trajectories(Filter(source="env")))


class FileEnv(HermesAgentBaseEnv):
    """The policy is to write a word into a file."""

    name = "files"
    env_config_cls = HermesAgentEnvConfig
    default_toolsets = ("terminal", "file")

    async def setup(self) -> None:
        self.items = [{"id": f"t{n}", "word": f"word{n}"} for n in range(4)]

    async def get_next_item(self) -> Any:
        return self.items[0]

    def format_prompt(self, item: Any) -> str:
        return f"Task: write {item['word']} into out.txt"

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        found = await ctx.read_file("out.txt")
        return float(found.get("content") == item["word"])


def make(
    env_class: type[HermesAgentBaseEnv],
    base_url: str,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    server_type: str = "sglang",
    **settings: Any,
) -> Any:
    """An environment of one server, ready to run."""
    known = {"group_size": 2, "use_wandb": False, "max_token_length": 256, **settings}
    server = APIServerConfig(
        base_url=base_url, model_name="policy", server_type=server_type, health_check=False, timeout=30
    )
    env = env_class(env_class.env_config_cls(**known), [server])
    if tokenizer is not None:
        env.tokenizer = tokenizer
    return env
