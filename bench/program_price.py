"""The price of an agent of others: its rollouts against those of our own loop, on the same task.

    python bench/program_price.py [--groups 5] [--json]

The task is one command in a shell and an answer: two model calls. `own loop` has our agent with its terminal;
`plain program` is `tests/envs/programs/agent.py`, an agent of the standard library, behind the gateway; the
rest are that program, with nothing to do, alone in a sandbox, and a sandbox with the same two commands. The
policy answers at once, in this process. CPU is that of everything in a control group, as in bench/sandbox.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(Path(__file__).parent)]

from tests.envs.programs.policy import AGENT, END, policy  # noqa: E402
from tests.envs.token_source import TokenServer, Words  # noqa: E402
from tests.rl.world import tiny_tokenizer  # noqa: E402

from hermes.config.settings import SandboxSettings  # noqa: E402
from hermes.envs.builtin.program import ProgramConfig, ProgramEnv  # noqa: E402
from hermes.envs.builtin.reward_function import RewardFunctionConfig, RewardFunctionEnv  # noqa: E402
from hermes.envs.servers.config import APIServerConfig  # noqa: E402
from hermes.envs.tokenise import load_tokenizer  # noqa: E402
from hermes.sandbox import open_sandbox  # noqa: E402
from sandbox import cpu_s, enter_group  # noqa: E402

GROUP = 8
CALL = '<tool_call>\n{"name": "%s", "arguments": {"command": "echo 7 > answer.txt"}}\n</tool_call>'
REWARD = """
async def score(ctx):
    return float((await ctx.read_file("answer.txt")).strip() == "7")
"""


def environment(kind: str, folder: Path, server: TokenServer) -> Any:
    fields: dict[str, Any] = {
        "dataset_name": str(folder / "tasks.jsonl"),
        "reward": f"{folder / 'reward.py'}:score",
        "tokenizer_name": str(folder / "tokenizer"),
        "group_size": GROUP,
        "max_token_length": 3000,
        "use_wandb": False,
    }
    served = APIServerConfig(
        base_url=server.base_url, model_name="policy", server_type="sglang", health_check=False
    )
    if kind == "own loop":
        return RewardFunctionEnv(RewardFunctionConfig(**fields, enabled_toolsets=["terminal"]), [served])
    return ProgramEnv(ProgramConfig(**fields, agent=f"{AGENT} {{prompt}}"), [served])


async def rollouts(env: Any, groups: int) -> None:
    for _ in range(groups):
        group, _ = await env.collect_trajectories(await env.get_next_item())
        assert group["scores"] == [1.0] * GROUP, group["scores"]


async def alone(command: str, count: int) -> None:
    """The command in sandboxes, as many at once as in a group."""

    async def once() -> None:
        sandbox = await open_sandbox(SandboxSettings(backend="bubblewrap"), interactive=False)
        try:
            await sandbox.write_file("agent.py", AGENT.read_bytes())
            assert (await sandbox.run(command)).exit_code == 0
        finally:
            await sandbox.close()

    for _ in range(count // GROUP):
        await asyncio.gather(*(once() for _ in range(GROUP)))


async def measure(groups: int, folder: Path, usage: Path | None) -> dict[str, dict[str, float]]:
    results = {}

    async def timed(name: str, work: Callable[[int], Awaitable[None]]) -> None:
        await work(1)
        begun, begun_s = cpu_s(usage), time.monotonic()
        await work(groups)
        count = groups * GROUP
        results[name] = {
            "cpu_ms": round((cpu_s(usage) - begun) / count * 1000, 1),
            "per_s": round(count / (time.monotonic() - begun_s), 2),
        }

    words = Words(load_tokenizer(str(folder / "tokenizer")), "answer")
    for kind, tool in (("own loop", "terminal"), ("plain program", "shell")):
        with policy(words, f"I will.\n{CALL % tool}{END}", f"Done.{END}") as server:
            env = environment(kind, folder, server)
            await env.setup()
            try:
                await timed(kind, lambda count, env=env: rollouts(env, count))  # type: ignore[misc]
            finally:
                await env.close()
    silent = "python3 agent.py --act silent x"
    await timed("that program alone, silent", lambda count: alone(silent, count * GROUP))
    await timed("a sandbox and one command", lambda count: alone("true", count * GROUP))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--groups", type=int, default=5, help=f"of {GROUP} rollouts")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    usage = enter_group()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HERMES_HOME"] = str(folder / "home")
        os.environ["HERMES_SANDBOX__BACKEND"] = "bubblewrap"
        (folder / "tasks.jsonl").write_text(json.dumps({"prompt": "Write 7 to answer.txt."}) + "\n")
        (folder / "reward.py").write_text(REWARD)
        (folder / "tokenizer").mkdir()
        tiny_tokenizer(folder / "tokenizer", 8192, words=["answer"])
        results = asyncio.run(measure(options.groups, folder, usage))
    if options.json:
        print(json.dumps(results, indent=2))
        return
    for kind, figures in results.items():
        print(f"{kind:28} {figures['cpu_ms']:8.1f} CPU-ms a rollout {figures['per_s']:8.2f} a second")


if __name__ == "__main__":
    main()
