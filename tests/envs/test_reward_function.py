"""The environment over prompts of a file and a reward function, which are those of `hermes batch`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.core import Message
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.builtin.reward_function import RewardFunctionConfig, RewardFunctionEnv
from hermes.envs.cli.sample_grader import ScriptedPolicy
from hermes.envs.modes.evaluate import EvalRunner
from hermes.envs.servers.config import APIServerConfig
from hermes.errors import HermesError, NothingToEvaluateError, UsageError
from tests.cli.process import hermes
from tests.envs.gold import earn
from tests.fakes.provider import FakeProvider, text

REWARDS = """
def length(ctx):
    return -len(ctx.answer) / ctx.row.metadata["scale"]

def right(ctx):
    return ctx.answer == ctx.expected

async def written(ctx):
    out = await ctx.terminal("cat notes.txt")
    return float(out["output"].strip() == ctx.expected)

def broken(ctx):
    raise KeyError("no such column")
"""
pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "my.py"
    path.write_text(REWARDS)
    return path


def write_tasks(folder: Path, *rows: dict[str, object]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def opened(tasks: Path, reward: str, home: Path) -> RewardFunctionEnv:
    """Set up, with a policy that says what a test tells it to."""
    server = APIServerConfig(base_url="http://127.0.0.1:9/v1", server_type="openai", health_check=False)
    config = RewardFunctionConfig(dataset_name=str(tasks), reward=reward, use_wandb=False)
    env = RewardFunctionEnv(config, [server])
    await env.setup()
    env.rehearse(ScriptedPolicy(), home)
    return env


async def reward_of(env: HermesAgentBaseEnv, answer: str) -> float:
    return (await earn(env, await env.get_next_item(), [Message.assistant(answer)])).value


async def test_the_function_gets_row_and_answer_and_its_number_is_the_reward(
    tmp_path: Path, rewards: Path, home: Path
) -> None:
    tasks = write_tasks(tmp_path, {"prompt": "Say hi", "expected": "hi", "scale": 4})
    env = await opened(tasks, f"{rewards}:length", home)
    assert await reward_of(env, "hello") == -1.25, "any finite number, not only 0 to 1"
    await env.close()
    env = await opened(tasks, f"{rewards}:right", home)
    assert (await reward_of(env, "hi"), await reward_of(env, "ho")) == (1.0, 0.0)
    await env.close()


async def test_the_files_of_a_row_are_in_the_sandbox_that_the_function_looks_into(
    tmp_path: Path, rewards: Path, home: Path
) -> None:
    row = {"prompt": "Read it", "expected": "blue", "files": {"notes.txt": "blue"}, "id": "one"}
    env = await opened(write_tasks(tmp_path, row), f"{rewards}:written", home)
    env.config.enabled_toolsets = ["file"]
    assert await reward_of(env, "done") == 1.0
    assert env.item_key(await env.get_next_item()) == "one"
    await env.close()


async def test_a_function_that_raises_gives_no_reward(tmp_path: Path, rewards: Path, home: Path) -> None:
    env = await opened(write_tasks(tmp_path, {"prompt": "Say hi"}), f"{rewards}:broken", home)
    with pytest.raises(HermesError, match="KeyError: 'no such column'"):
        await reward_of(env, "hi")
    await env.close()


async def test_of_few_tasks_none_is_held_out_and_that_is_no_failed_evaluation(
    tmp_path: Path, rewards: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = write_tasks(tmp_path, *({"prompt": f"Say {n}", "id": str(n)} for n in range(4)))
    env = await opened(tasks, f"{rewards}:right", home)
    with pytest.raises(NothingToEvaluateError, match="no tasks to evaluate") as raised:
        await env.evaluate()
    assert "10 or more" in raised.value.hint
    runner = EvalRunner(env)
    for _ in range(3):
        await runner.run()
    (record,) = [record for record in caplog.records if record.name == "hermes.envs.modes.evaluate"]
    assert "continues without evaluations" in record.message and record.exc_info is None
    await env.close()


async def test_tasks_are_held_out_by_their_key(tmp_path: Path, rewards: Path, home: Path) -> None:
    tasks = write_tasks(tmp_path, *({"prompt": f"Say {n}", "id": str(n)} for n in range(100)))
    env = await opened(tasks, f"{rewards}:right", home)
    held_out = {row.key for row in await env.eval_items()}
    trained = {(await env.get_next_item()).key for _ in range(200)}
    assert 3 <= len(held_out) <= 25 and not held_out & trained and len(held_out | trained) == 100
    await env.close()


async def test_each_pass_has_every_task_once_in_an_order_of_its_own(
    tmp_path: Path, rewards: Path, home: Path
) -> None:
    """A file that is sorted by kind must not give batches of one kind; replicas share one order."""
    tasks = write_tasks(tmp_path, *({"prompt": f"Say {n}", "id": str(n)} for n in range(60)))

    async def passes(seed: int | None, *, shuffle: bool = True) -> list[list[str]]:
        env = await opened(tasks, f"{rewards}:right", home)
        env.config.sampling_seed, env.config.shuffle, env.config.eval_share = seed, shuffle, 0
        await env.setup()
        keys = [env.item_key(await env.get_next_item()) for _ in range(180)]
        await env.close()
        return [keys[start : start + 60] for start in (0, 60, 120)]

    drawn = await passes(7)
    assert all(sorted(one) == sorted(drawn[0]) and len(set(one)) == 60 for one in drawn)
    assert drawn[0] != drawn[1] != drawn[2]
    assert drawn == await passes(7), "the same in every process of the run"
    assert drawn[0] != (await passes(8))[0]
    in_order = [str(n) for n in range(60)]
    assert in_order not in (*drawn, *await passes(None))
    assert await passes(7, shuffle=False) == [in_order] * 3


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "a", "image": "python:3.11"}, "an image of its own"),
        ({"prompt": "a", "cwd": "sub"}, "a cwd of its own"),
        ({"prompt": "a", "reward": "other.py:f"}, "a reward of its own"),
    ],
)
async def test_rows_that_a_rollout_cannot_carry_out_are_refused(
    tmp_path: Path, rewards: Path, home: Path, row: dict[str, object], why: str
) -> None:
    tasks = write_tasks(tmp_path, row)
    with pytest.raises(UsageError, match=why):
        await opened(tasks, f"{rewards}:right", home)


def test_groups_are_processed_by_the_command_line(
    tmp_path: Path, rewards: Path, home: Path, bundled_home: Path
) -> None:
    home.mkdir()
    (home / "models").symlink_to(bundled_home / "models")
    tasks = write_tasks(tmp_path, {"prompt": "Say hi", "expected": "hi"})
    output = tmp_path / "groups.jsonl"
    with FakeProvider([text("hi"), text("ho")], loop=True) as provider:
        settings = {
            "env.dataset_name": tasks,
            "env.reward": f"{rewards}:right",
            "env.total_steps": 1,
            "env.group_size": 2,
            "env.use_wandb": False,
            "env.data_path_to_save_groups": output,
            "openai.base_url": provider.base_url,
            "openai.model_name": "fake",
            "openai.server_type": "openai",
            "openai.health_check": False,
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        done = hermes(home, "env", "process", "reward_function", *words)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(output.read_text().splitlines()[0])["scores"]) == [0.0, 1.0]


def test_without_prompts_or_function_it_says_what_to_set(home: Path) -> None:
    done = hermes(home, "env", "process", "reward_function", "--openai.server_type", "openai")
    assert done.returncode == 2 and "needs prompts and something" in done.stderr
    assert "--env.reward my.py:score" in done.stderr
    assert "reward_function" in hermes(home, "env", "list").stdout
