"""Any program in the training loop: its sandbox, its model, its reward, and exactly the tokens it sampled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hermes.config.paths import db_path
from hermes.core import Source, StopReason
from hermes.core.sequence import MASKED
from hermes.envs.builtin.program import ProgramConfig, ProgramEnv
from hermes.envs.failures import GroupDroppedError
from hermes.envs.servers.config import APIServerConfig
from hermes.envs.tokenise import load_tokenizer
from hermes.errors import ConfigError, UsageError
from hermes.store import Reader
from tests.envs.programs.policy import AGENT, TURNS, policy
from tests.envs.token_source import TokenServer, Words
from tests.fakes.provider import FakeProvider, text
from tests.rl.world import tiny_tokenizer

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(path, 4096, words=["answer"])
    return path


@pytest.fixture(scope="module")
def words(tokenizer_folder: Path) -> Words:
    return Words(load_tokenizer(str(tokenizer_folder)), "answer")


Make = Callable[..., ProgramEnv]


@pytest.fixture
def make(tmp_path: Path, tokenizer_folder: Path) -> Make:
    tasks = tmp_path / "tasks.jsonl"
    row = {"prompt": "Write it.", "id": "one", "expected": "7", "files": {"notes.txt": "blue"}}
    tasks.write_text(json.dumps(row) + "\n")
    scorer = tmp_path / "tests.py"
    scorer.write_text(
        "async def score(ctx):\n"
        "    return float((await ctx.read_file('answer.txt')).strip() == ctx.expected)\n"
    )

    def made(server: TokenServer | None, words: str = "{prompt}", **settings: Any) -> ProgramEnv:
        defaults: dict[str, Any] = {
            "agent": f"{AGENT} {words}",
            "dataset_name": str(tasks),
            "reward": f"{scorer}:score",
            "tokenizer_name": str(tokenizer_folder),
            "group_size": 2,
            "max_token_length": 400,
            "include_messages": True,
            "use_wandb": False,
        }
        address = server.base_url if server else "http://127.0.0.1:9/v1"
        served = APIServerConfig(
            base_url=address, model_name="policy", server_type="sglang", health_check=False
        )
        return ProgramEnv(ProgramConfig(**{**defaults, **settings}), [served])

    return made


async def group_of(env: ProgramEnv) -> Any:
    try:
        await env.setup()
        group, _ = await env.collect_trajectories(await env.get_next_item())
    finally:
        await env.close()
    return group


def generated(server: TokenServer) -> list[list[int]]:
    return [body["input_ids"] for path, body in server.requests if path == "/generate"]


@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
@pytest.mark.parametrize("flags", ["", "--stream --rewrite"])
async def test_a_program_is_trained_on_what_was_sampled(
    make: Make, words: Words, home: Path, dialect: str, flags: str
) -> None:
    with policy(words, *TURNS) as server:
        group = await group_of(make(server, f"--dialect {dialect} {flags} {{prompt}}"))
    spoken = [token for turn in TURNS for token in words.encode(turn)]
    assert group["scores"] == [1.0, 1.0]
    prompts = generated(server)
    for tokens, masks in zip(group["tokens"], group["masks"], strict=True):
        assert [mask for mask in masks if mask != MASKED] == spoken, "each token once, in one sequence"
        assert tokens[: -len(words.encode(TURNS[-1]))] in prompts, "the context is the one it was sampled in"
    assert all(body["sampling_params"]["temperature"] == 1.0 for _, body in server.requests)
    with Reader(db_path(home)) as reader:
        trajectories = [reader.get(row.id) for row in reader.summaries()]
    assert {item.header.source for item in trajectories} == {Source.ENV}
    assert {item.outcome.stop_reason for item in trajectories if item.outcome} == {StopReason.COMPLETED}
    for item in trajectories:
        facts = item.header.metadata
        assert (facts["agent"], facts["exit_code"], facts["calls"], facts["sequences"]) == (
            "agent.py",
            0,
            2,
            1,
        )
        assert facts["tokens_sampled"] == facts["tokens_trained"] == len(spoken)
        assert facts["answers_foreign"] == facts["answers_edited"] == 0
        assert [step.message.role.value for step in item.steps] == ["user", "assistant", "tool", "assistant"]
        assert all(step.call is None or step.call.tokens is not None for step in item.steps)


async def test_the_prompt_comes_on_standard_input_too(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server:
        await group_of(make(server, ""))
    assert "Write it." in words.decode(generated(server)[0])


@pytest.mark.parametrize(
    ("act", "settings", "reason"),
    [
        ("crash", {}, "ended with exit code 1: something broke; it never called its model"),
        ("silent", {}, "exit code 0: it printed nothing; it never called its model"),
        ("hang", {"terminal_lifetime": 3}, "ran for 3 s and was ended"),
        ("question", {}, "EOFError"),
    ],
)
async def test_a_program_that_fails_is_no_score(
    make: Make, words: Words, act: str, settings: dict[str, Any], reason: str
) -> None:
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError, match=reason):
        await group_of(make(server, f"--act {act} {{prompt}}", **settings))


@pytest.mark.parametrize(
    ("act", "stop"), [("late-crash", StopReason.ERROR), ("late-hang", StopReason.TIMEOUT)]
)
async def test_what_failed_after_its_calls_is_in_the_store_as_failed(
    make: Make, words: Words, home: Path, act: str, stop: StopReason
) -> None:
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError):
        await group_of(make(server, f"--act {act} {{prompt}}", terminal_lifetime=6, group_size=1))
    with Reader(db_path(home)) as reader:
        (trajectory,) = [reader.get(row.id) for row in reader.summaries()]
    assert trajectory.outcome is not None and trajectory.outcome.stop_reason is stop
    assert trajectory.turns == 2 and reader_rewards(home, trajectory.header.id) == 0


def reader_rewards(home: Path, trajectory_id: str) -> int:
    with Reader(db_path(home)) as reader:
        return len(reader.rewards(trajectory_id))


async def test_a_program_that_fills_the_disk_is_stopped(
    make: Make, words: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_SANDBOX__DISK_MB", "64")
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError, match="exit code"):
        await group_of(make(server, "--act fill {prompt}", group_size=1))


async def test_a_model_that_is_too_short_for_the_agent_is_named(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError, match="limit is 6"):
        env = make(server)
        env.max_token_len = 64
        await group_of(env)


async def test_a_program_reaches_nothing_but_its_model(make: Make, words: Words, home: Path) -> None:
    with policy(words, *TURNS) as server:
        await group_of(make(server, "--act network {prompt}"))
    with Reader(db_path(home)) as reader:
        outputs = [reader.get(row.id).header.metadata["output"] for row in reader.summaries()]
    assert outputs == ["Done.\n", "Done.\n"]


async def test_of_two_models_one_is_trained(
    make: Make, words: Words, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeProvider([text("Write 7.")], loop=True) as provider, policy(words, *TURNS) as server:
        monkeypatch.setenv("HERMES_PROVIDERS__LAB__BASE_URL", provider.base_url)
        command = "--model {model} --planner lab/large {prompt}"
        group = await group_of(make(server, command, train_model="worker"))
        assert {request.json["model"] for request in provider.posts} == {"large"}
    assert group["scores"] == [1.0, 1.0]
    spoken = [token for turn in TURNS for token in words.encode(turn)]
    for masks in group["masks"]:
        assert [mask for mask in masks if mask != MASKED] == spoken, "the plan is not trained on"
    with Reader(db_path(home)) as reader:
        trajectories = [reader.get(row.id) for row in reader.summaries()]
    assert {item.header.model for item in trajectories} == {"lab/large", "custom/worker"}
    (facts,) = {
        (item.header.metadata["calls"], item.header.metadata["calls_to_others"])
        for item in trajectories
        if "calls" in item.header.metadata
    }
    assert facts == (3, 1)


async def test_a_model_that_nobody_serves_is_named(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server, pytest.raises(GroupDroppedError, match="nowhere/large"):
        await group_of(make(server, "--planner nowhere/large {prompt}", train_model="policy"))


async def test_what_a_program_left_running_changes_no_reward(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server:
        group = await group_of(make(server, "--act daemon {prompt}"))
    assert group["scores"] == [1.0, 1.0]


async def test_a_script_scores_by_its_exit_code_or_by_a_number(
    make: Make, words: Words, tmp_path: Path
) -> None:
    by_code, by_file = tmp_path / "check.sh", tmp_path / "grade.sh"
    by_code.write_text('test "$(cat answer.txt)" = 7\n')
    by_file.write_text(
        '#!/bin/sh\ngrep -q \'"expected": "7"\' && echo \'{"reward": 0.5}\' > $HERMES_REWARD_FILE\n'
    )
    for script, value in ((by_code, 1.0), (by_file, 0.5)):
        with policy(words, *TURNS) as server:
            assert (await group_of(make(server, reward=str(script))))["scores"] == [value, value]


async def test_a_program_may_state_its_own_reward_if_it_was_allowed_to(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server:
        assert (await group_of(make(server, "--act reward {prompt}", reward="program")))["scores"] == [
            0.25
        ] * 2
        with pytest.raises(GroupDroppedError, match="404"):
            await group_of(make(server, "--act reward {prompt}"))


async def test_calls_beyond_the_limit_are_refused_and_the_work_is_scored(make: Make, words: Words) -> None:
    with policy(words, *TURNS) as server:
        group = await group_of(make(server, max_agent_turns=1))
    assert group["scores"] == [1.0, 1.0] and len(generated(server)) == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"agent": ""}, "no agent is named"),
        ({"agent": "no-such-program {prompt}"}, "'no-such-program' is not on this machine"),
        ({"agent": f"{AGENT} {{promt}}"}, "name in braces"),
        ({"agent": f"{AGENT} 'unfinished"}, "cannot be read"),
        ({"reward": "absent.sh"}, "'absent.sh' is no file"),
        ({"reward": ""}, "needs prompts and something that scores"),
    ],
)
async def test_a_mistake_is_named_before_anything_is_started(
    make: Make, settings: dict[str, Any], sentence: str
) -> None:
    env = make(None, **settings)
    with pytest.raises((ConfigError, UsageError), match=sentence):
        await env.setup()
    await env.close()
