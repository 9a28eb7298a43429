"""What environments of verifiers meet in tests: packages, a policy, and what a group must hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hermes.compat.verifiers.env import VerifiersEnv, environment
from hermes.core.sequence import MASKED
from hermes.envs.servers.config import APIServerConfig
from tests.envs.token_source import Answer, TokenServer, said

CLASSIC = '''
"""A package of the classic API: a question, a tool, an answer."""
import asyncio, json, signal, urllib.request

TOOLS = [{"type": "function", "function": {"name": "double", "description": "", "parameters":
    {"type": "object", "properties": {"x": {"type": "integer"}}}}}]


class Env:
    env_id = None
    requires_group_rollouts = False

    def __init__(self, numbers, held_out):
        self.numbers, self.held_out = numbers, held_out
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as verifiers 0.3.1 does: only the main thread may

    def get_dataset(self):
        return [{"example_id": n, "prompt": [{"role": "user", "content": f"2*{n}"}]} for n in self.numbers]

    def build_eval_dataset(self):
        return self.get_dataset()[:self.held_out] or None

    async def run_rollout(self, row, client, model, sampling):
        if row["example_id"] == 13:
            raise RuntimeError("thirteen is unlucky")
        print("noise on standard output")
        messages = list(row["prompt"])
        while True:
            reply = await asyncio.to_thread(self.ask, client, model, sampling, messages)
            messages.append(reply)
            if not reply.get("tool_calls"):
                break
            for call in reply["tool_calls"]:
                x = json.loads(call["function"]["arguments"])["x"]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(2 * x)})
        reward = float(str(2 * row["example_id"]) in (reply["content"] or ""))
        return {"reward": reward, "metrics": {"messages": len(messages)}, "stop_condition": "done"}

    def ask(self, client, model, sampling, messages):
        body = {"model": model, "messages": messages, "tools": TOOLS, **sampling}
        request = urllib.request.Request(client.api_base_url + "/chat/completions", json.dumps(body).encode(),
            {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["choices"][0]["message"]


def load_environment(numbers=(2,), held_out=0):
    return Env(list(numbers), held_out)
'''
STAND_IN = """
class ClientConfig:
    def __init__(self, api_base_url, api_key_var, max_retries):
        self.api_base_url = api_base_url
"""


def install_stand_in(folder: Path, version: str) -> None:
    """A verifiers of this version with the one class that the worker itself uses of the classic API."""
    (folder / "verifiers").mkdir(parents=True, exist_ok=True)
    (folder / "verifiers" / "__init__.py").write_text(STAND_IN)
    metadata = folder / f"verifiers-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: verifiers\nVersion: {version}\n")


def make(package: str, base_url: str, tokenizer: Path, python: str, **settings: Any) -> VerifiersEnv:
    cls = environment(package)
    defaults: dict[str, Any] = {
        "package": package,
        "verifiers_python": python,
        "tokenizer_name": str(tokenizer),
        "group_size": 2,
        "max_token_length": 200,
        "include_messages": True,
        "use_wandb": False,
    }
    config = cls.env_config_cls(**{**defaults, **settings})
    server = APIServerConfig(base_url=base_url, model_name="policy", server_type="sglang", health_check=False)
    env = cls(config, [server])
    assert isinstance(env, VerifiersEnv)
    return env


def speaker(
    encode: Callable[[str], Sequence[int]], decode: Callable[[Sequence[int]], str], *turns: str
) -> TokenServer:
    """A policy that says the turns of a conversation in order; how many it said, the prompt shows."""

    def answer(ids: list[int], params: dict[str, Any]) -> Answer:
        return said(encode(turns[decode(ids).count("<|im_start|>assistant") - 1]))

    return TokenServer(answer)


def assert_exact(
    group: Any, server: TokenServer, encode: Callable[[str], Sequence[int]], *turns: str
) -> None:
    """Every sequence is the server's last prompt and answer, and its mask is exactly what was sampled."""
    prompts = [body["input_ids"] for path, body in server.requests if path == "/generate"]
    spoken = [list(encode(turn)) for turn in turns]
    for tokens, masks, logprobs in zip(
        group["tokens"], group["masks"], group["inference_logprobs"], strict=True
    ):
        assert tokens[: -len(spoken[-1])] in prompts, "the last prompt of a rollout"
        assert [mask for mask in masks if mask != MASKED] == [token for turn in spoken for token in turn]
        expected = [logprob for turn in spoken for logprob in said(turn).logprobs]
        assert [logprobs[at] for at, mask in enumerate(masks) if mask != MASKED] == expected
        position = 0
        for turn in spoken:  # each turn stands where the next prompt of the server has it
            starts = [at for at in range(position, len(tokens)) if tokens[at : at + len(turn)] == turn]
            assert starts and masks[starts[0] : starts[0] + len(turn)] == turn
            position = starts[0] + len(turn)
