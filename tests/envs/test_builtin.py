"""The built-in environments: gold earns 1, no cheat more than silence, nothing held out is trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes.core import Message, Role
from hermes.envs.builtin.calculator import CalculatorEnv
from hermes.envs.builtin.code_tests import CodeTestsEnv
from hermes.envs.builtin.format import FormatEnv
from hermes.envs.builtin.gsm8k import Gsm8kEnv
from hermes.envs.builtin.preference import PreferenceEnv
from hermes.envs.builtin.reasoning_puzzles import ReasoningGymEnv
from hermes.envs.builtin.solvable import tool_call_turn
from hermes.envs.builtin.terminal_tasks import TerminalTasksEnv
from hermes.envs.builtin.tool_calling import ToolCallingEnv
from hermes.envs.builtin.web_research import WebResearchEnv
from hermes.envs.builtin.word_limit import WordLimitEnv
from hermes.envs.builtin.word_problems import WordProblemsEnv
from hermes.envs.rewards.result import GraderError
from hermes.errors import UsageError
from tests.envs.gold import EVERY, SILENCE, SOLVABLE, earn, rehearsal, settings
from tests.fakes.provider import FakeProvider
from tests.fakes.site import Page, Request, Site

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize("cls", SOLVABLE)
async def test_gold_earns_one_and_silence_less(cls: type[Any], home: Path) -> None:
    async with rehearsal(cls, home) as env:
        for item in [await env.get_next_item() for _ in range(3)] + list(await env.eval_items())[:1]:
            gold = await earn(env, item, env.gold(item))
            assert (gold.value, gold.success) == (1.0, True), (item, gold)
            silent = await earn(env, item, SILENCE)
            expected = 1.0 if getattr(item, "category", "") == "irrelevant" else 0.0
            assert silent.value == expected


@pytest.mark.parametrize("cls", SOLVABLE)
async def test_no_exploit_earns_more_than_silence(cls: type[Any], home: Path) -> None:
    async with rehearsal(cls, home) as env:
        for item in [await env.get_next_item() for _ in range(1 if env.default_toolsets else 3)]:
            silent = await earn(env, item, SILENCE)
            exploits = env.exploits(item)
            assert {"random", "answer echo", "flood", "judge injection"} <= set(exploits)
            for name, turns in exploits.items():
                cheated = await earn(env, item, turns)
                assert cheated.value <= silent.value, (name, cheated, item)


@pytest.mark.parametrize("cls", [TerminalTasksEnv, CodeTestsEnv])
async def test_shaping_rewards_no_exploit_either_where_there_is_a_sandbox(cls: type[Any], home: Path) -> None:
    async with rehearsal(cls, home, reward_mode="shaped") as env:
        item = await env.get_next_item()
        assert (await earn(env, item, env.gold(item))).value == 1.0
        for name, turns in env.exploits(item).items():
            assert (await earn(env, item, turns)).value == 0.0, name


@pytest.mark.parametrize("cls", EVERY)
async def test_the_same_seed_gives_the_same_items_and_the_parts_are_disjoint(
    cls: type[Any], home: Path
) -> None:
    seen = []
    for seed in (1, 1, 2):
        async with rehearsal(cls, home, seed=seed) as env:
            trained = [(await env.get_next_item()).key for _ in range(30)]
            assert len(set(trained)) == 30
            again = [(await env.get_next_item()).key for _ in range(30)]
            assert sorted(again) == sorted(trained) and again != trained, "the next round has another order"
            held_out = [item.key for item in await env.eval_items()]
            assert len(set(held_out)) == 10
            assert set(held_out).isdisjoint(trained)
            seen.append((trained, again, held_out))
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


@pytest.mark.parametrize("cls", EVERY)
def test_an_environment_says_what_it_teaches_and_how_it_is_graded(cls: type[Any]) -> None:
    import sys

    assert cls.name and cls.__doc__
    about = sys.modules[cls.__module__].__doc__ or ""
    assert about.startswith(f"{cls.name}: ")
    config, servers = cls.config_init()
    assert type(config) is cls.env_config_cls
    assert servers[0].base_url == "http://localhost:8001/v1"


@pytest.mark.parametrize("cls", [CalculatorEnv, ToolCallingEnv, WordProblemsEnv, WordLimitEnv, FormatEnv])
async def test_gold_conversations_to_learn_from_answer_every_call(cls: type[Any], home: Path) -> None:
    async with rehearsal(cls, home) as env:
        for _ in range(20):
            item = await env.get_next_item()
            messages = env.gold_messages(item)
            assert [message.role for message in messages if message.role is Role.USER] == [Role.USER]
            asked = [call.id for message in messages for call in message.tool_calls]
            assert asked == [message.tool_call_id for message in messages if message.role is Role.TOOL]
            if cls is CalculatorEnv:
                assert messages[-1].content == messages[-2].content == item.answer


async def test_the_calculators_gold_results_are_what_the_tool_says(home: Path) -> None:
    async with rehearsal(CalculatorEnv, home, two_step_share=1.0) as env:
        item = await env.get_next_item()
        env._policy().turns = tuple(env.gold(item))
        scored = await env.run_item(item)
    told = [message.content for message in env.gold_messages(item) if message.role is Role.TOOL]
    assert told == [message["content"] for message in scored.result.messages if message["role"] == "tool"]
    assert scored.result.turns_used == 3


@pytest.mark.parametrize(
    ("turns", "value"),
    [
        ([Message.assistant("I do not know")], 0.0),
        ([tool_call_turn(("no_such_tool", {}))], 0.2),
        ([tool_call_turn(("calculator", {"expression": "1 + 1"}))], 0.3),
        ([tool_call_turn(("calculator", {"wrong": 1}))], 0.3),
        ([tool_call_turn(("calculator", {"expression": "RIGHT"}))], 0.6),
        ([tool_call_turn(("calculator", {"expression": "RIGHT"})), Message.assistant("12")], 0.6),
    ],
)
async def test_a_shaped_calculator_reward_rises_with_the_way_that_was_come(
    turns: list[Message], value: float, home: Path
) -> None:
    async with rehearsal(CalculatorEnv, home, reward_mode="shaped", two_step_share=0.0) as env:
        item = await env.get_next_item()
        if "RIGHT" in str(turns):
            turns = [tool_call_turn(("calculator", {"expression": item.expression})), *turns[1:]]
        result = await earn(env, item, turns)
        assert result.value == value
        assert not result.success
        assert (await earn(env, item, [Message.assistant(item.answer)])).success


async def test_a_file_that_is_no_file_does_not_hold_up_the_terminal_grader(home: Path) -> None:
    async with rehearsal(TerminalTasksEnv, home, train_size=200) as env:
        job = next(item for item in env._train if item.kind == "count")
        for command in (
            "mkfifo count.txt",
            "mkdir count.txt",
            "ln -s /dev/zero count.txt",
            "ln -s . count.txt",
        ):
            turns = [tool_call_turn(("terminal", {"command": command})), Message.assistant("Done.")]
            assert (await earn(env, job, turns)).value == 0.0


async def test_every_kind_of_job_is_done_by_its_solution(home: Path) -> None:
    async with rehearsal(TerminalTasksEnv, home, train_size=200) as env:
        first = {item.kind: item for item in reversed(env._train)}
        assert len(first) == 13
        for job in first.values():
            assert (await earn(env, job, env.gold(job))).value == 1.0, job


async def test_a_solution_too_large_to_be_one_is_not_run(home: Path) -> None:
    async with rehearsal(CodeTestsEnv, home) as env:
        item = await env.get_next_item()
        source = item.reference + "#" * 60_000
        turns = [
            tool_call_turn(("write_file", {"path": "solution.py", "content": source})),
            Message.assistant("Done."),
        ]
        assert (await earn(env, item, turns)).value == 0.0


async def test_the_way_of_working_counts_only_once_the_fact_is_right(home: Path) -> None:
    async with rehearsal(WebResearchEnv, home) as env:
        item = next(item for item in env._train if len(item.pages) == 1)
        *steps, _ = env.gold(item)
        wrong = await earn(env, item, [*steps, Message.assistant("It is not known.")])
        assert wrong.value == 0.0
        assert wrong.parts["tools"] == 1.0
        guessed = await earn(env, item, [Message.assistant(item.answer)])
        assert guessed.value == pytest.approx(0.8), "right, but without looking it up"
        dawdled = await earn(env, item, [*steps * 3, Message.assistant(item.answer)])
        assert guessed.value < dawdled.value < 1.0
        assert dawdled.parts["efficiency"] == pytest.approx(0.6)
        assert guessed.parts["fallback"] == 1.0, "no judge was asked, and the verdict says so"
        assert "word_overlap" in guessed.parts and "judge" not in guessed.parts


async def test_research_is_judged_by_the_configured_model_and_a_verdict_is_kept(
    home: Path, tmp_path: Path
) -> None:
    from tests.envs.judges import says

    with FakeProvider(says(lambda answer: 5)) as provider:
        judge = {
            "judge_model": "judge",
            "judge_base_url": provider.base_url,
            "judge_cache": tmp_path / "v.jsonl",
        }
        async with rehearsal(WebResearchEnv, home, **judge) as env:
            item = await env.get_next_item()
            rewards = [await earn(env, item, env.gold(item)) for _ in range(2)]
        assert len(provider.posts) == 1
    assert [reward.value for reward in rewards] == [pytest.approx(0.7)] * 2
    assert rewards[0].parts["fallback"] == 0.0


async def test_a_preference_is_the_reward_models_and_its_absence_no_score(home: Path) -> None:
    def score(request: Request) -> Page:
        said = json.loads(request.body)["messages"][-1]["content"]
        return Page(
            json.dumps({"data": [{"data": [4.0 if "thank" in said else -4.0]}]}).encode(), "application/json"
        )

    with Site({"/pooling": score}) as site:
        async with rehearsal(PreferenceEnv, home, reward_model_url=site.url("")) as env:
            item = await env.get_next_item()
            assert (await earn(env, item, [Message.assistant("Many thanks!")])).value > 0.9
            assert (await earn(env, item, [Message.assistant("No.")])).value < 0.1
            assert (await earn(env, item, SILENCE)).value == 0.0
    async with rehearsal(PreferenceEnv, home, reward_model_url=site.url("")) as env:
        with pytest.raises(GraderError, match="reward model"):
            await earn(env, await env.get_next_item(), [Message.assistant("Many thanks!")])


async def test_gsm8k_reads_a_folder_and_never_trains_on_what_it_tests(home: Path, tmp_path: Path) -> None:
    def row(n: int) -> str:
        return json.dumps(
            {"question": f"What is {n} + {n}?", "answer": f"It is <<{n}+{n}>>.\n#### {2 * n:,}"}
        )

    (tmp_path / "train.jsonl").write_text("\n".join(row(n) for n in range(600, 640)))
    (tmp_path / "test.jsonl").write_text("\n".join(row(n) for n in range(630, 650)))
    async with rehearsal(Gsm8kEnv, home, dataset_name=str(tmp_path), train_size=100, eval_size=100) as env:
        trained = {item.question for item in env._train}
        held_out = list(await env.eval_items())
        assert (len(trained), len(held_out)) == (30, 20)
        assert trained.isdisjoint(item.question for item in held_out)
        item = held_out[0]
        assert (await earn(env, item, env.gold(item))).value == 1.0
        assert (await earn(env, item, [Message.assistant("#### 7")])).value == 0.0


async def test_a_missing_or_broken_data_set_is_refused_and_never_replaced(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(**given: Any) -> Gsm8kEnv:
        known = settings(Gsm8kEnv, **given)
        return Gsm8kEnv(Gsm8kEnv.env_config_cls(**known), Gsm8kEnv.config_init()[1])

    (tmp_path / "train.jsonl").write_text('{"question": "?", "answer": "no mark"}\n')
    (tmp_path / "test.jsonl").write_text('{"question": "?", "answer": "no mark"}\n')
    with pytest.raises(UsageError, match="no answer after '####'"):
        await opened(dataset_name=str(tmp_path)).setup()
    with pytest.raises(UsageError, match="cannot read"):
        await opened(dataset_name=str(tmp_path / "..")).setup()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UsageError, match="openai/gsm8k") as refused:
        await opened().setup()
    assert "environment word_problems" in (refused.value.hint or "")


async def test_settings_that_make_no_sense_are_refused_by_name(home: Path) -> None:
    with pytest.raises(ValueError, match="no category nonsense"):
        ToolCallingEnv.env_config_cls(categories=["nonsense"])
    with pytest.raises(UsageError, match="no data set 'nonsense'"):
        async with rehearsal(ReasoningGymEnv, home, datasets=["nonsense"]):
            pass


async def test_several_data_sets_of_puzzles_are_taken_in_turn(home: Path) -> None:
    options = {"chain_sum": {"min_terms": 2, "max_terms": 2}}
    async with rehearsal(
        ReasoningGymEnv, home, datasets=["chain_sum", "spell_backward"], dataset_options=options
    ) as env:
        items = [await env.get_next_item() for _ in range(6)]
        assert [item.dataset for item in items] == ["chain_sum", "spell_backward"] * 3
        assert all(item.question.count("+") + item.question.count(" - ") <= 2 for item in items[::2])
