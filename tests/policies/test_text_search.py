"""The search and the gate by themselves, over many seeds: what is planted is found, the useless stays out.

The scores are drawn, so that hundreds of whole improvements run in minutes; `gepa`, the ledger, the split,
the sequential test and the registry are the real ones.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.core.texts import SYSTEM_PROMPT, Texts
from hermes.errors import HermesError, UsageError
from hermes.policies.improve import Improvement
from hermes.policies.text.improve import TextImprovement, prepare_split, split_tasks
from hermes.policies.text.ledger import Ledger, Spending, texts_key
from hermes.policies.text.proposals import Guard, ListedProposals, Records
from hermes.policies.text.signal import TaskScore, TextTask
from hermes.safety.redact import Redactor
from hermes.training.policy_registry import BASE_ID, PolicyRecord, PolicyRegistry

PLANTED = "the planted instruction"
ERROR_RATE = 0.05


@dataclass
class DrawnSignal:
    """An agent that succeeds with a known probability, more often under the planted text."""

    drawn: random.Random
    base: float
    lift: float
    tasks: list[TextTask] = field(default_factory=list)
    rollouts: int = 0
    name: str = "drawn"

    def __post_init__(self) -> None:
        names = random.Random(1).sample(range(10_000), 160)
        self.tasks = [TextTask(f"t{number}", f"question {number}") for number in names]

    async def score(self, texts: Texts, task: TextTask) -> TaskScore:
        self.rollouts += 1
        chance = self.base + self.lift * (PLANTED in texts[SYSTEM_PROMPT])
        success = float(self.drawn.random() < chance)
        return TaskScore(success, "", "", f"r{self.rollouts}", 1, 10, 0.0)

    async def close(self) -> None:
        pass


@dataclass
class DrawnProposals:
    """Proposals of which a share holds the planted instruction."""

    drawn: random.Random
    good_share: float
    ledger: Ledger
    name: str = "drawn"
    count: int = 0

    async def propose(self, name: str, current: str, records: Records) -> str | None:
        self.count += 1
        self.ledger.spending.add(1, 0.0)
        good = self.drawn.random() < self.good_share
        return f"{PLANTED} {self.count}" if good else f"useless {self.count}"


def improvement(home: Path, seed: int, base: float, lift: float, good_share: float) -> Improvement:
    """One whole improvement in a home of its own."""
    config = load({}, {"HERMES_HOME": str(home)})
    current = PolicyRecord(BASE_ID, "drawn/model", None, None)
    drawn = random.Random(seed)
    signal = DrawnSignal(drawn, base, lift)
    work = TextImprovement(
        config,
        (SYSTEM_PROMPT,),
        current,
        {SYSTEM_PROMPT: "be helpful"},
        ERROR_RATE,
        seed,
        Spending(max_calls=500),
        8,
        lambda line: None,
    )
    work.prepare({"seed": seed})
    split = prepare_split(signal.tasks, 0.4, ERROR_RATE)
    return asyncio.run(work.improve(signal, DrawnProposals(drawn, good_share, work.ledger), split))


def promoted(tmp_path: Path, seeds: int, base: float, lift: float, good_share: float) -> int:
    count = 0
    for seed in range(seeds):
        result = improvement(tmp_path / str(seed), seed, base, lift, good_share)
        assert result.promoted is (result.record.decision == "better")
        if result.promoted and lift:
            assert PLANTED in str(result.record.texts[SYSTEM_PROMPT])
        count += result.promoted
    return count


def test_a_planted_instruction_is_found_and_promoted(tmp_path: Path) -> None:
    assert promoted(tmp_path, 10, base=0.2, lift=0.7, good_share=0.2) >= 9


def test_what_does_not_help_is_not_promoted(tmp_path: Path) -> None:
    """At an error rate of 5 %, five of ten would be a chance of one in fifty million."""
    assert promoted(tmp_path, 10, base=0.5, lift=0, good_share=0.2) < 5


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_over_a_hundred_seeds_it_is_found_in_95(tmp_path: Path) -> None:
    found = promoted(tmp_path, 100, base=0.2, lift=0.7, good_share=0.2)
    print(f"found and promoted in {found} of 100 seeds")
    assert found >= 95


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_over_two_hundred_useless_runs_promotions_stay_below_the_error_rate(tmp_path: Path) -> None:
    count = promoted(tmp_path, 200, base=0.5, lift=0, good_share=0.2)
    print(f"false promotions in {count} of 200 runs; the stated rate is {ERROR_RATE}")
    assert count <= 200 * ERROR_RATE


def test_equal_and_nearly_equal_tasks_are_on_one_side() -> None:
    long = "please count the letters of the word that follows and write the number {}"
    tasks = [TextTask(f"a{n}", f"question {n}") for n in range(40)]
    tasks += [TextTask(f"b{n}", f"Question  {n}") for n in range(40)]
    tasks += [TextTask(f"c{n}", long.format(n % 3)) for n in range(9)]
    split = split_tasks(tasks, 0.4)
    sides = (split.train, split.chosen_by, split.held_out)
    assert sum(map(len, sides)) == len(tasks) and all(sides)
    side_of = {task.key: number for number, side in enumerate(sides) for task in side}
    assert all(side_of[f"a{n}"] == side_of[f"b{n}"] for n in range(40))
    assert len({side_of[f"c{n}"] for n in range(9)}) == 1


def test_what_an_environment_evaluates_on_is_not_searched_with() -> None:
    tasks = [TextTask(f"held{n}", f"question {n}", held_out=True) for n in range(5)]
    tasks += [TextTask(f"train{n}", f"question {n}", held_out=False) for n in range(12)]
    split = split_tasks(tasks, 0.4)
    assert {task.key for task in split.held_out} == {f"held{n}" for n in range(5)}
    assert {task.key for task in (*split.train, *split.chosen_by)} == {f"train{n}" for n in range(5, 12)}


def test_too_few_tasks_are_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="can never show"):
        prepare_split([TextTask(f"t{n}", f"question {n}") for n in range(12)], 0.3, 0.01)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("x" * 8_001, "8000 is the most"),
        ("use the key sk-very-secret-0123456789 for it", "secret"),
        ("Say: the quick brown fox jumps over the lazy dog today.", "repeats a task's answer"),
        ("the QUICK brown, fox! jumps over the lazy cat", "repeats a task's answer"),  # eight words of it
        ("the QUICK brown, fox! jumps over the sofa", None),  # seven
        ("Answer with one number.", None),
    ],
)
def test_a_proposal_may_hold_no_answer_and_no_secret(text: str, problem: str | None) -> None:
    guard = Guard.of(
        ["Well, the quick brown fox jumps over the lazy dog, and sleeps", "42"],
        {"KEY": "sk-very-secret-0123456789"},
    )
    said = guard.problem(SYSTEM_PROMPT, text)
    assert (said is None) if problem is None else (said is not None and problem in said)


async def test_listed_proposals_are_each_tried_once_in_the_order_of_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "proposals.txt"
    path.write_text("one\n\ntwo\nlines\n\n\n" + "x" * 9_000 + "\n\nthree\n")
    guard = Guard(frozenset(), Redactor({}))
    orders = []
    for seed in range(8):
        listed = ListedProposals.read(path, guard, seed)
        texts = [text async for text in _all(listed)]
        assert sorted(texts) == ["one", "three", "two\nlines"] and listed.refused == 1
        orders.append(tuple(texts))
    assert len(set(orders)) > 1
    path.write_text("\n\n")
    with pytest.raises(UsageError, match="no proposal"):
        ListedProposals.read(path, guard, 0)


async def _all(listed: ListedProposals):  # type: ignore[no-untyped-def]
    while (text := await listed.propose(SYSTEM_PROMPT, "", [])) is not None:
        yield text


def test_the_ledger_survives_a_torn_line_and_counts_each_entry_once(tmp_path: Path) -> None:
    task, texts = TextTask("t", "question"), {SYSTEM_PROMPT: "a"}
    ledger = Ledger(tmp_path, Spending(10))
    ledger.keep_score(texts, task, TaskScore(1.0, "yes", "", "r", 3, 30, 0.5))
    ledger.keep_proposal("prompt", "first", 0.25)
    ledger.keep_proposal("prompt", "second", 0.25)
    with (tmp_path / "paid.jsonl").open("a") as file:
        file.write('{"texts": "half')
    again = Ledger(tmp_path, Spending(10))
    assert again.spending.calls == 0  # nothing is spent until it is used
    assert [again.score(texts, task) for _ in range(2)][1] == TaskScore(1.0, "yes", "", "r", 3, 30, 0.5)
    assert [again.proposal("prompt") for _ in range(3)] == ["first", "second", None]
    assert (again.spending.calls, again.spending.cost_usd) == (5, 1.0)
    assert again.score({SYSTEM_PROMPT: "b"}, task) is None
    assert texts_key({"a": "1", "b": "2"}) == texts_key({"b": "2", "a": "1"})


SCORE = (
    '{"texts": "a", "task": "t", "score": {"score": 1.0, "answer": "", "feedback": "", '
    '"trajectory_id": "r", "calls": 1, "tokens": 1, "cost_usd": COST}}'
)


@pytest.mark.parametrize(
    "line",
    [
        "\x00\x00\x00",
        "[1]",
        "{}",
        '{"texts": "a", "task": "t"}',
        '{"texts": "a", "task": "t", "score": {"score": 1.0}}',
        SCORE.replace("COST", '0, "more": 1'),
        SCORE.replace("COST", '"free"'),
        SCORE.replace("1.0", "NaN").replace("COST", "0"),
        '{"prompt": "p", "answer": "a", "cost_usd": -1}',
        '{"prompt": "p", "cost_usd": null}',
        "[" * 100_000,
    ],
)
def test_a_damaged_line_of_the_ledger_is_named_and_nothing_is_paid_again(tmp_path: Path, line: str) -> None:
    ledger = Ledger(tmp_path, Spending(10))
    ledger.keep_proposal("prompt", "first", 0.25)
    path = tmp_path / "paid.jsonl"
    whole = path.read_text()
    path.write_text(f"{whole}{line}\n{whole}")
    with pytest.raises(HermesError, match=r"paid\.jsonl:2 is no entry of a ledger") as raised:
        Ledger(tmp_path, Spending(10))
    assert "remove that line" in raised.value.hint and "\n" not in raised.value.message
    path.write_text(whole)
    assert Ledger(tmp_path, Spending(10)).proposal("prompt") == "first"


def test_a_ledger_that_cannot_be_read_or_written_is_one_sentence(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "gone", Spending(10))
    with pytest.raises(HermesError, match="cannot be written"):
        ledger.keep_proposal("prompt", "first", 0.25)
    (tmp_path / "paid.jsonl").mkdir()
    with pytest.raises(HermesError, match="cannot be read"):
        Ledger(tmp_path, Spending(10))


def test_a_text_policy_is_promoted_by_its_own_name_and_not_for_another(tmp_path: Path) -> None:
    """Several policies stand on the same weights, and differ in their texts."""
    from hermes.rl.weights.open import promote

    config, registry = load({}, {"HERMES_HOME": str(tmp_path)}), PolicyRegistry(tmp_path)
    for name in ("first", "second"):
        registry.add(
            PolicyRecord(name.upper(), "drawn/model", None, None, name=name, texts={"examples": name})
        )
    assert promote(config, "first").name == "first"
    assert registry.current().texts == {"examples": "first"}
