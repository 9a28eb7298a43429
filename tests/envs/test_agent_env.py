"""Agent environments: whole groups through the real loop, sandbox, store and reward."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes.config.paths import db_path
from hermes.core import Source, StopReason
from hermes.core.sequence import MASKED, from_group
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.safety.forbidden import FORBIDDEN_PATHS
from hermes.store import Filter, Reader
from hermes.tools.base import Tool
from hermes.training.data.metrics import group_metrics
from tests.envs.world import FileEnv, after, call, make, policy, stored, writes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


async def test_a_group_is_rolled_out_rewarded_recorded_and_token_exact(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    with policy(tokenizer, writes("word0")) as server:
        env = make(FileEnv, server.base_url, tokenizer, include_messages=True)
        await env.setup()
        group, later = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert later == []
    assert group["scores"] == [1.0, 1.0]
    assert group.get("group_overrides") is None
    for ids, mask, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
        assert len(ids) == len(mask) == len(logprobs)
        spoken = tokenizer.decode([index for index in mask if index != MASKED])
        assert spoken == f"{writes('word0')('')}<|im_end|>It is written.<|im_end|>"
        assert tokenizer.decode(ids).count("<|im_start|>assistant") == 2
    assert [message["role"] for message in group["messages"][0]] == ["user", "assistant", "tool", "assistant"]
    recorded = stored(home)
    assert [each.header.source for each in recorded] == [Source.ENV, Source.ENV]
    assert {each.header.id for each in recorded} == {each["trajectory_id"] for each in group["overrides"]}
    assert {each.header.task_id for each in recorded} == {"t0"}
    assert {each.header.config["sandbox"]["backend"] for each in recorded} == {"bubblewrap"}
    assert all(each.outcome.stop_reason is StopReason.COMPLETED for each in recorded)
    with Reader(db_path(home)) as reader:
        assert reader.count(Filter(source="env", min_reward=1.0)) == 2


async def test_a_rollout_that_names_a_forbidden_path_is_counted_and_recorded(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    numbers = iter(range(100))

    def says(prompt: str) -> str:
        if "tool_response" in after(prompt):
            return "Done."
        return call("terminal", command="cat /tests/expected.txt" if next(numbers) == 0 else "ls")

    with policy(tokenizer, says) as server:
        env = make(FileEnv, server.base_url, tokenizer)
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert sorted(facts["forbidden_paths"] for facts in group["overrides"]) == [0, 1]
    assert group_metrics([from_group(group)], 0)["health/forbidden_paths"] == 0.5
    with Reader(db_path(home)) as reader:
        details = [
            reward.detail.get(FORBIDDEN_PATHS)
            for trajectory in stored(home)
            for reward in reader.rewards(trajectory.header.id)
        ]
    touch = {"step": 1, "tool": "terminal", "path": "/tests/expected.txt"}
    assert sorted(details, key=bool) == [None, [touch]]


async def test_rollouts_of_a_group_do_not_see_each_others_files(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    class Alone(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float((await ctx.terminal("ls"))["output"].split() == [f"{result.final_response}"])

    numbers = iter(range(100))

    def says(prompt: str) -> str:
        so_far = after(prompt)
        if "tool_response" in so_far:
            return so_far.partition('"path": "')[2].partition('"')[0]
        return call("write_file", path=f"file{next(numbers)}", content="x")

    with policy(tokenizer, says) as server:
        env = make(Alone, server.base_url, tokenizer, group_size=3)
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert group["scores"] == [1.0, 1.0, 1.0]


async def test_an_environments_own_tools_are_made_anew_for_each_rollout(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    class Counting(FileEnv):
        default_toolsets = ()

        def extra_tools(self, item: Any) -> list[Tool]:
            pressed: list[int] = []

            async def press(arguments: Any, bench: Any) -> str:
                pressed.append(1)
                return f"pressed {len(pressed)} times"

            schema = {"type": "object", "properties": {}, "additionalProperties": False}
            return [Tool("press", "own", "Press the button.", schema, press)]

        def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Any:  # type: ignore[override]
            return float("pressed 2 times" in result.messages[-2]["content"])

    def says(prompt: str) -> str:
        return call("press") if after(prompt).count("tool_response>") < 4 else "Done."

    with policy(tokenizer, says) as server:
        env = make(Counting, server.base_url, tokenizer)
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert group["scores"] == [1.0, 1.0]


async def test_a_group_shares_the_toolsets_that_were_drawn_for_it(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    class Open(FileEnv):
        def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Any:  # type: ignore[override]
            return 0.0

    (home / "config.yaml").parent.mkdir(parents=True)
    (home / "config.yaml").write_text("distributions:\n  coin: {file: 50, math: 50, todo: 50}\n")
    with policy(tokenizer, lambda prompt: "Hello.") as server:
        env = make(Open, server.base_url, tokenizer, distribution="coin", disabled_toolsets=["todo"])
        await env.setup()
        drawn = []
        for index in range(8):
            await env.collect_trajectories({"id": str(index), "word": "w"})
            rollouts = [each for each in stored(home) if each.header.task_id == str(index)]
            toolsets = {tuple(each.header.config["toolsets"]) for each in rollouts}
            assert len(rollouts) == 2 and len(toolsets) == 1
            drawn += toolsets
        await env.close()
    assert len(set(drawn)) > 1
    assert all("todo" not in each for each in drawn)


async def test_long_results_are_held_to_the_environments_budget(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    def says(prompt: str) -> str:
        if "tool_response" in after(prompt):
            return "Done."
        return "\n".join(call("terminal", command=f"printf '{letter}%.0s' $(seq 300)") for letter in "abc")

    class Open(FileEnv):
        default_toolsets = ("terminal",)

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            shown = [message["content"] for message in result.messages if message["role"] == "tool"]
            self.shown = shown
            return 0.0

    limits = {"default_result_size_chars": 1000, "turn_budget_chars": 700, "preview_size_chars": 20}
    with policy(tokenizer, says) as server:
        env = make(Open, server.base_url, tokenizer, group_size=1, **limits)
        await env.setup()
        await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert sorted("persisted-output" in each for each in env.shown) == [False, False, True]
    (saved,) = [each for each in env.shown if "persisted-output" in each]
    preview = saved.splitlines()[1]
    assert preview in ("a" * 20, "b" * 20, "c" * 20)


async def test_rollouts_do_not_see_what_the_user_had_the_agent_remember(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    from hermes.agent.build import open_writer
    from hermes.config.load import load
    from hermes.core import FactAuthor
    from hermes.tools.builtin.memory import new_fact

    prompts: list[str] = []

    def says(prompt: str) -> str:
        prompts.append(prompt)
        return writes("word0")(prompt)

    class Remembering(FileEnv):
        default_toolsets = ("file", "memory")

    config = load()
    with open_writer(config) as writer:
        fact = new_fact("has a dog called Ada", config.settings.memory, FactAuthor.USER)
        writer.add_fact(fact, config.settings.memory.max_facts).result()
    with policy(tokenizer, says) as server:
        env = make(Remembering, server.base_url, tokenizer)
        await env.setup()
        await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert prompts and not any("Ada" in prompt for prompt in prompts)
    assert all("memory" not in trajectory.header.tools for trajectory in stored(home))
