"""Harbor tasks as an environment: our agent and programs do them, and the tasks' own tests score them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes.core import Message, ToolCall
from hermes.envs.builtin.harbor import HarborConfig, HarborEnv
from hermes.envs.cli.sample_grader import ScriptedPolicy
from hermes.envs.failures import GroupDroppedError
from hermes.envs.rewards.result import GraderError
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.tokenise import load_tokenizer
from hermes.errors import ConfigError
from hermes.sandbox.open import unusable_reason
from tests.envs.gold import earn
from tests.envs.harbor.folders import write_task
from tests.envs.programs.policy import AGENT, TURNS, policy
from tests.envs.token_source import Words
from tests.rl.world import tiny_tokenizer

pytestmark = [
    pytest.mark.usefixtures("home"),
    pytest.mark.skipif(unusable_reason("bubblewrap") is not None, reason="it needs bubblewrap"),
]


PLANT = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"


def environment(folder: Path, base_url: str = "http://127.0.0.1:9/v1", **settings: Any) -> HarborEnv:
    server = APIServerConfig(base_url=base_url, model_name="policy", server_type="sglang", health_check=False)
    config = HarborConfig(dataset_path=str(folder), place="bubblewrap", use_wandb=False, **settings)
    return HarborEnv(config, [server])


async def rehearsed(folder: Path, home: Path, **settings: Any) -> HarborEnv:
    env = environment(folder, **settings)
    await env.setup()
    env.rehearse(ScriptedPolicy(), home)
    return env


def turns(*commands: str) -> list[Message]:
    calls = [ToolCall(f"c{n}", "terminal", json.dumps({"command": text})) for n, text in enumerate(commands)]
    return [Message.assistant("", tool_calls=(call,)) for call in calls] + [Message.assistant("Done.")]


async def test_our_agent_is_scored_by_the_tasks_tests(tmp_path: Path, home: Path) -> None:
    env = await rehearsed(write_task(tmp_path / "t"), home)
    task = await env.get_next_item()
    assert env.format_prompt(task) == "Write 42 to answer.txt.\n"
    assert (await earn(env, task, turns("echo 42 > answer.txt"))).value == 1
    assert (await earn(env, task, turns(PLANT))).value == 0
    daemon = f"nohup sh -c 'while :; do {PLANT}; done' > /dev/null 2>&1 & true"
    assert (await earn(env, task, turns(daemon))).value == 0
    assert not list((home / "harbor/trials").iterdir())
    await env.close()


async def test_files_of_tools_lie_where_the_task_works(tmp_path: Path, home: Path) -> None:
    env = await rehearsed(write_task(tmp_path / "t"), home)
    call = ToolCall("c", "write_file", json.dumps({"path": "answer.txt", "content": "42\n"}))
    script = [Message.assistant("", tool_calls=(call,)), Message.assistant("Done.")]
    assert (await earn(env, await env.get_next_item(), script)).value == 1
    await env.close()


async def test_steps_are_one_conversation(tmp_path: Path, home: Path) -> None:
    toml = '[[steps]]\nname = "a"\nmin_reward = 1\n[[steps]]\nname = "b"\n'
    folder = write_task(tmp_path / "t", toml=toml)
    (folder / "instruction.md").unlink()
    for name in ("a", "b"):
        test = f"if [ -e /app/{name} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
        for path, text in {"instruction.md": f"Make {name}.", "tests/test.sh": test}.items():
            (folder / "steps" / name / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "steps" / name / path).write_text(text)
    env = await rehearsed(folder, home)
    task = await env.get_next_item()
    env._policy().turns = (*turns("touch a"), *turns("touch b"))  # type: ignore[attr-defined]
    scored = await env.run_item(task)
    assert scored.reward.value == 1
    prompts = [step.message.content for step in scored.result.trajectory.steps if step.message.role == "user"]
    assert prompts == ["Make a.", "Make b."]
    assert (await earn(env, task, turns("touch b"))).value == 0, "the second step does not run"
    assert (await earn(env, task, turns("touch a"))).value == 0.5
    await env.close()


async def test_a_task_without_a_reward_drops_its_group(tmp_path: Path, home: Path) -> None:
    env = await rehearsed(write_task(tmp_path / "t", test="true"), home)
    with pytest.raises(GraderError, match="neither"):
        await earn(env, await env.get_next_item(), turns("true"))
    await env.close()


async def test_bad_tasks_are_left_out_and_named(
    tmp_path: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_task(tmp_path / "tasks/good")
    write_task(tmp_path / "tasks/gpu", toml="[environment]\ngpus = 1")
    write_task(tmp_path / "tasks/alpine", dockerfile="FROM alpine")
    env = await rehearsed(tmp_path / "tasks", home)
    assert {(await env.get_next_item()).key for _ in range(5)} == {"good"}
    messages = [record.getMessage() for record in caplog.records]
    assert any("gpu" in text and "environment.gpus" in text for text in messages)
    assert any("alpine is not at hand" in text for text in messages)
    with pytest.raises(ConfigError, match="none of the 1 tasks"):
        await environment(write_task(tmp_path / "only/gpu", toml="[environment]\ngpus = 1").parent).setup()
    for settings in ({"reward": "x"}, {"dataset_name": "x"}):
        with pytest.raises(ConfigError):
            await environment(tmp_path / "tasks", **settings).setup()


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(path, 16384, words=["answer"])
    return path


async def test_a_program_does_a_task_and_is_trained(tmp_path: Path, tokenizer_folder: Path) -> None:
    test = '[ "$(cat /app/answer.txt)" = 7 ] && echo 1 > /logs/verifier/reward.txt'
    test += " || echo 0 > /logs/verifier/reward.txt"
    folder = write_task(tmp_path / "t", test=test, instruction="Write it.")
    words = Words(load_tokenizer(str(tokenizer_folder)), "answer")
    settings: dict[str, Any] = {
        "agent": f"{AGENT} {{prompt}}",
        "tokenizer_name": str(tokenizer_folder),
        "group_size": 2,
        "max_token_length": 400,
    }
    with policy(words, *TURNS) as server:
        env = environment(folder, server.base_url, **settings)
        try:
            await env.setup()
            group, _ = await env.collect_trajectories(await env.get_next_item())
        finally:
            await env.close()
    assert group is not None and group["scores"] == [1.0, 1.0]
    assert all(any(mask != -100 for mask in masks) for masks in group["masks"])


async def test_our_agent_does_a_task_and_is_trained(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = write_task(tmp_path / "t", test="echo 0.5 > /logs/verifier/reward.txt")
    words = Words(load_tokenizer(str(tokenizer_folder)), "answer")
    settings: dict[str, Any] = {"tokenizer_name": str(tokenizer_folder), "group_size": 2}
    with policy(words, *TURNS) as server:
        env = environment(folder, server.base_url, **settings)
        try:
            await env.setup()
            group, _ = await env.collect_trajectories(await env.get_next_item())
            await env.wandb_log({})
        finally:
            await env.close()
    assert group is not None and group["scores"] == [0.5, 0.5]
    assert all(any(mask != -100 for mask in masks) for masks in group["masks"])


async def test_a_program_has_the_tasks_time(tmp_path: Path, tokenizer_folder: Path) -> None:
    folder = write_task(tmp_path / "t", toml="[agent]\ntimeout_sec = 1.0")
    words = Words(load_tokenizer(str(tokenizer_folder)), "answer")
    with policy(words, *TURNS) as server:
        env = environment(
            folder,
            server.base_url,
            agent=f"{AGENT} --act hang {{prompt}}",
            tokenizer_name=str(tokenizer_folder),
            group_size=1,
        )
        try:
            await env.setup()
            with pytest.raises(GroupDroppedError, match="ran for 1 s"):
                await env.collect_trajectories(await env.get_next_item())
        finally:
            await env.close()
