"""Agent environments: whole groups through the real loop, sandbox, store and reward."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hermes.config.paths import db_path
from hermes.core import Message, Source, StopReason
from hermes.envs.agent_config import HermesAgentEnvConfig
from hermes.envs.failures import GroupDroppedError
from hermes.envs.phase import eval_face
from hermes.envs.result import AgentResult
from hermes.envs.rewards.result import RewardResult
from hermes.envs.sequences import MASKED
from hermes.envs.tool_context import ToolContext
from hermes.errors import ConfigError, ProviderError
from hermes.store import Filter, Reader
from hermes.tools.base import Tool
from tests.envs.templates import bundled_tokenizer
from tests.envs.token_source import Answer, TokenServer, said
from tests.envs.world import FileEnv, after, call, make, policy
from tests.fakes.provider import FakeProvider, text, tool_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@pytest.fixture
def tokenizer(bundled_home: Path) -> PreTrainedTokenizerBase:
    return bundled_tokenizer(bundled_home)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def writes(word: str) -> Any:
    """A policy that writes a word, then says so."""

    def says(prompt: str) -> str:
        if "tool_response" in after(prompt):
            return "It is written."
        return call("write_file", path="out.txt", content=word)

    return says


def stored(home: Path) -> list[Any]:
    with Reader(db_path(home)) as reader:
        return list(reader.each(Filter(source="env")))


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


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: math.nan, "nan"),
        (lambda: "0.5", "'0.5'"),
        (lambda: None, "None"),
        (lambda: 1.5, "outside of 0 … 1"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
async def test_a_reward_that_is_none_drops_the_group_and_is_never_zero(
    home: Path, tokenizer: PreTrainedTokenizerBase, wrong: Any, words: str
) -> None:
    class Broken(FileEnv):
        default_toolsets = ()

        def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Any:  # type: ignore[override]
            return wrong()

    with policy(tokenizer, lambda prompt: "Hello.") as server:
        env = make(Broken, server.base_url, tokenizer)
        await env.setup()
        with pytest.raises(GroupDroppedError, match=words) as caught:
            await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert caught.value.reason == "grader"
    assert env.rollout_failures == {"grader": 2}
    with Reader(db_path(home)) as reader:
        assert (reader.count(Filter(source="env")), reader.count(Filter(max_reward=1.0))) == (4, 0)


async def test_a_server_that_fails_once_costs_a_retry_and_nothing_else(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    failures = iter([400])

    def answer(ids: list[int], params: dict[str, Any]) -> Answer:
        if status := next(failures, 0):
            return Answer([], [], status=status)
        return said([*tokenizer("Hello.")["input_ids"], end])

    class Lenient(FileEnv):
        default_toolsets = ()

        def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Any:  # type: ignore[override]
            return RewardResult(0.5, {"style": 0.25}, "half")

    with TokenServer(answer) as server:
        env = make(Lenient, server.base_url, tokenizer)
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert group["scores"] == [0.5, 0.5]
    outcomes = sorted(each.outcome.stop_reason.value for each in stored(home))
    assert outcomes == ["completed", "completed", "error"]


async def test_a_server_that_is_down_is_an_infrastructure_failure(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    with policy(tokenizer, lambda prompt: "") as server:
        url = server.base_url
    env = make(FileEnv, url, tokenizer, group_size=1, terminal_lifetime=3)
    await env.setup()
    with pytest.raises(ProviderError, match="connection refused"):
        await env.collect_trajectories(await env.get_next_item())
    await env.close()
    assert env.rollout_failures == {"provider": 1}


async def test_a_rollout_that_ran_out_of_time_is_not_scored(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    over = threading.Event()

    def hang(prompt: str) -> str:
        over.wait(30)
        return "Too late."

    with policy(tokenizer, hang) as server:
        env = make(FileEnv, server.base_url, tokenizer, group_size=1, terminal_lifetime=1)
        await env.setup()
        with pytest.raises(GroupDroppedError, match="time limit of 1 s") as caught:
            await env.collect_trajectories(await env.get_next_item())
        over.set()
        await env.close()
    assert caught.value.reason == "timeout"
    assert env.rollout_failures == {"timeout": 1}


async def test_a_chat_server_gives_data_but_nothing_to_train_on(
    home: Path,
) -> None:
    script = [tool_calls([("write_file", {"path": "out.txt", "content": "word0"})]), text("Done.")]
    with FakeProvider(script, loop=True) as provider:
        env = make(FileEnv, provider.base_url, server_type="openai", include_messages=True, group_size=1)
        await env.setup()
        item = await env.get_next_item()
        env.process_mode = True
        group, _ = await env.collect_trajectories(item)
        env.process_mode = False
        with pytest.raises(ConfigError, match="cannot be trained on") as caught:
            await env.collect_trajectories(item)
        await env.close()
    assert (group["tokens"], group["masks"], group["scores"]) == ([[]], [[]], [1.0])
    assert "gave no token ids" in group["overrides"][0]["not_trainable"]
    assert group["messages"][0][-1]["content"] == "Done."
    assert "sglang" in caught.value.hint


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
        with eval_face(env) as face:
            await face.evaluate()
        await env.close()
    assert before == env.rewards_for_log == [0.0, 0.0]
    assert env.rollout_failures == {}
    metrics = env.logged["metrics"]
    assert metrics["eval/success_rate"] == 0.5
    assert metrics["eval/success_rate_low"] < 0.5 < metrics["eval/success_rate_high"]
    assert (metrics["eval/samples"], metrics["eval/failed_to_run"]) == (2, 1)
    assert [sample["score"] for sample in env.logged["samples"]] == [1.0, 0.0, None]
    assert {each.header.metadata["phase"] for each in stored(home)} == {"train", "eval"}


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
        (str(tmp_path / "none.jsonl"), "question", "cannot be read"),
        (str(tasks), "prompt", "no field 'prompt'"),
        (None, "prompt", "neither a setup method nor a dataset"),
    ]:
        broken = make(FromFile, "http://127.0.0.1:9/v1", dataset_name=name, prompt_field=field)
        with pytest.raises(Exception, match=words):
            await broken.setup()


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


async def test_the_model_of_this_process_needs_no_server(bundled_home: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HERMES_HOME", str(bundled_home))

    class Chatty(FileEnv):
        default_toolsets = ()

        def opening(self, item: Any) -> list[Message]:
            return [Message.system("Answer with one word.")]

        def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Any:  # type: ignore[override]
            return float(len(result.final_response) > 0)

    env = make(Chatty, "local", server_type="openai", group_size=2, max_token_length=8)
    env.server.servers[0].config.model_name = "hermes/smollm2"
    await env.setup()
    group, _ = await asyncio.wait_for(env.collect_trajectories(await env.get_next_item()), 60)
    await env.close()
    assert all(any(mask != MASKED for mask in masks) for masks in group["masks"])
    assert all(
        len(ids) == len(logs) for ids, logs in zip(group["tokens"], group["inference_logprobs"], strict=True)
    )


async def test_a_rollout_whose_history_is_rewritten_keeps_every_context(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    """The policy ends its turns with a mark that the template does not use, so each turn stands alone."""
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")

    def answer(ids: list[int], params: dict[str, Any]) -> Answer:
        text = writes("word0")(tokenizer.decode(ids))
        return said([*tokenizer(text, add_special_tokens=False)["input_ids"], end])

    with TokenServer(answer) as server:
        env = make(FileEnv, server.base_url, tokenizer)
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        await env.close()
    assert group["scores"] == [1.0] * 4
    assert group["group_overrides"] == {"group_size": 4}
    parts = [(each["part"], each["parts"]) for each in group["overrides"]]
    assert parts == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert len({each["trajectory_id"] for each in group["overrides"]}) == 2
    spoken = [tokenizer.decode([mask for mask in masks if mask != MASKED]) for masks in group["masks"]]
    assert spoken[1] == spoken[3] == "It is written.<|endoftext|>"


async def test_sequences_stay_below_the_trainers_limit(
    home: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    def endless(prompt: str) -> str:
        return call("terminal", command="echo again")

    with policy(tokenizer, endless) as server:
        env = make(FileEnv, server.base_url, tokenizer, group_size=1)
        env.max_token_len = 2500
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
        env.max_token_len = 500
        with pytest.raises(GroupDroppedError, match="may have 499") as caught:
            await env.collect_trajectories({"id": "long", "word": "w"})
        await env.close()
    assert caught.value.reason == "prompt too long"
    (ids,) = group["tokens"]
    assert 2000 < len(ids) < 2500
    recorded = next(each for each in stored(home) if each.header.task_id == "t0")
    assert recorded.outcome.stop_reason is StopReason.CONTEXT_FULL
    assert group["scores"] == [0.0]  # the policy's own doing, so it is scored


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
