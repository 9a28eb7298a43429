"""Agent environments: their settings, tasks and evaluation, and ways of writing one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.modes.evaluate import EvalRunner
from tests.envs.world import FileEnv, make, policy, stored
from tests.fakes.provider import FakeProvider, text, tool_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def test_the_settings_of_the_reference_are_here_with_their_defaults() -> None:
    config = HermesAgentEnvConfig()
    expected = {
        "enabled_toolsets": None,
        "disabled_toolsets": None,
        "distribution": None,
        "max_agent_turns": 30,
        "system_prompt": None,
        "agent_temperature": 1.0,
        "terminal_backend": "local",
        "terminal_timeout": 120,
        "terminal_lifetime": 3600,
        "dataset_name": None,
        "dataset_split": "train",
        "prompt_field": "prompt",
        "tool_pool_size": 128,
        "tool_call_parser": "hermes",
        "default_result_size_chars": 100_000,
        "turn_budget_chars": 200_000,
        "preview_size_chars": 1500,
        "tool_result_overrides": None,
        "extra_body": None,
        "group_size": 4,
    }
    assert {name: getattr(config, name) for name in expected} == expected
    for field, value in (("tool_call_parser", "morse"), ("enabled_toolsets", ["terminl"])):
        with pytest.raises(ValueError, match=r"morse|terminl"):
            HermesAgentEnvConfig(**{field: value})


async def test_tasks_come_from_a_file(home: Path, tmp_path: Path) -> None:
    class FromFile(FileEnv):
        setup = FileEnv.__mro__[1].setup  # type: ignore[attr-defined]
        get_next_item = FileEnv.__mro__[1].get_next_item  # type: ignore[attr-defined]
        format_prompt = FileEnv.__mro__[1].format_prompt  # type: ignore[attr-defined]

    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"question": "one?"}\n\n{"question": "two?"}\n')
    env = make(FromFile, "http://127.0.0.1:9/v1", dataset_name=str(tasks), prompt_field="question")
    await env.setup()
    prompts = [env.format_prompt(await env.get_next_item()) for _ in range(3)]
    assert prompts == ["one?", "two?", "one?"]
    for name, field, words in [
        (str(tmp_path / "none.jsonl"), "question", "cannot read"),
        (str(tasks), "prompt", "no field 'prompt'"),
        (None, "prompt", "neither a setup method nor a dataset"),
    ]:
        broken = make(FromFile, "http://127.0.0.1:9/v1", dataset_name=name, prompt_field=field)
        with pytest.raises(Exception, match=words):
            await broken.setup()


async def test_evaluation_keeps_out_of_the_training_metrics(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    class Measured(FileEnv):
        default_toolsets = ()

        async def eval_items(self) -> list[Any]:
            return self.items[1:]

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            self.seen = [*getattr(self, "seen", []), item["id"]]
            if item["id"] == "t3":
                raise RuntimeError("cannot be graded")
            return float(item["id"] == "t1")

        async def evaluate_log(self, **known: Any) -> None:
            self.logged = known

    with policy(tokenizer, lambda prompt: "Hello.") as server:
        env = make(Measured, server.base_url, tokenizer)
        await env.setup()
        await env.collect_trajectories(env.items[0])
        before = list(env.rewards_for_log)
        with EvalRunner(env).open_view() as view:
            await view.evaluate()
        await env.close()
    assert before == env.rewards_for_log == [0.0, 0.0]
    assert env.rollout_failures == {}
    metrics = env.logged["metrics"]
    assert metrics["eval/success_rate"] == 0.5
    assert metrics["eval/success_rate_low"] < 0.5 < metrics["eval/success_rate_high"]
    assert (metrics["eval/samples"], metrics["eval/failed_to_run"]) == (2, 1)
    assert [sample["score"] for sample in env.logged["samples"]] == [1.0, 0.0, None]
    assert {each.header.metadata["phase"] for each in stored(home)} == {"train", "eval"}


async def test_an_environment_of_the_old_style_judges_with_the_server_and_checks_in_the_sandbox(
    home: Path,
) -> None:
    """`ctx` is used like plain functions inside a coroutine that also awaits a judge."""

    class Old(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            judged = await self.server.chat_completion(
                messages=[{"role": "user", "content": f"JUDGE {result.final_response}"}], max_tokens=5
            )
            checked = ctx.terminal("cat out.txt")
            right = checked["exit_code"] == 0 and checked["output"] == item["word"]
            ctx.cleanup()
            return float(judged.choices[0].message.content) * right

    def reply(request: dict[str, Any]) -> Any:
        last = request["messages"][-1]
        if "JUDGE" in str(last["content"]):
            return text("0.75" if "Done." in last["content"] else "0")
        if last["role"] == "tool":
            return text("Done.")
        return tool_calls([("write_file", {"path": "out.txt", "content": "word0"})])

    with FakeProvider(reply) as provider:
        env = make(Old, provider.base_url, server_type="openai")
        env.process_mode = True
        await env.setup()
        group, _ = await asyncio.wait_for(env.collect_trajectories(await env.get_next_item()), 60)
        await env.close()
    assert group["scores"] == [0.75, 0.75]
