"""The split between training and evaluation: what asks the same is on one side, wherever it comes from."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path

import pytest

from hermes.core import Message, Rating, RatingKind, new_id
from hermes.data.export.run import ExportPlan, export
from hermes.data.export.select import TrajectorySelection
from hermes.data.export.split import Side, group_tasks, side_of
from hermes.data.formats.registry import FORMATS
from hermes.data.importing import import_files
from hermes.policies.rows import Method, gather_rows, held_out_comparisons
from hermes.store import Filter, Reader, Writer
from hermes.training.preference.sources import read_preference_files
from tests import records

STORES, QUICK_STORES, FAMILIES = 20, 4, 40
VOCABULARY = [
    "".join(pair) for pair in zip("bcdfglmnprst" * 9, "aeiouaeioua" * 9 + "aeioua" * 2, strict=False)
]


def _sentence(draw: random.Random) -> list[str]:
    return [
        "".join(draw.choice(VOCABULARY) for _ in range(draw.randint(1, 4)))
        for _ in range(draw.randint(16, 40))
    ]


def _variant(draw: random.Random, words: list[str]) -> str:
    """The question as another run has it: equal but for case, width and spacing, or with other ends."""
    changes = [
        lambda: " ".join(words),
        lambda: "  ".join(words).upper(),
        lambda: "\n".join(words) + " ",
        lambda: " ".join(words).translate({ord(c): ord(c) + 0xFEE0 for c in "abcdefgh"}),
        lambda: "Please: " + " ".join(words),
        lambda: " ".join([*words, "thank", "you"]),
        lambda: " ".join([*words[:-1], "otherwise"]),
    ]
    return draw.choice(changes)()


def _family(question: str, families: dict[str, int]) -> int:
    return families[question]


def _store(home: Path, draw: random.Random) -> dict[str, int]:
    """A store of two runs, an import and two rounds of coin-toss ratings; which family a question is of."""
    families: dict[str, int] = {}
    questions = [_sentence(draw) for _ in range(FAMILIES)]
    with Writer(home / "hermes.db") as writer:
        for number, words in enumerate(questions):
            for run in draw.sample(["first", "second", None], k=draw.randint(1, 3)):
                question = _variant(draw, words)
                families[question] = number
                liked = draw.random() < 0.5
                for answer, good in (("Yes, gladly.", liked), ("No, never.", not liked)):
                    messages = [Message.user(question), Message.assistant(answer)]
                    task_id = None if run is None else str(draw.randrange(1000, 9999) * 100 + number)
                    made = records.record(writer, messages, tools=(), task_id=task_id, run_id=run)
                    rating = Rating(
                        new_id(), made, RatingKind.THUMB, 1.0 if good else -1.0, "ann", draw.choice([10, 20])
                    )
                    writer.add_rating(rating).result()
        rows = []
        for number in draw.sample(range(FAMILIES), k=10):
            question = _variant(draw, questions[number])
            families[question] = number
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": "Perhaps."}]
            rows.append({"messages": turns})
        (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        with Reader(home / "hermes.db") as reader:
            assert import_files([home / "rows.jsonl"], reader, writer).rows == 10
    return families


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.slow if n >= QUICK_STORES else ()) for n in range(STORES)]
)
def test_a_question_is_on_one_side_of_every_split(tmp_path: Path, number: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    families = _store(tmp_path, draw)
    sides: dict[int, set[str]] = defaultdict(set)
    with Reader(tmp_path / "hermes.db") as reader:
        for name, filters in (
            ("all", Filter()),
            ("first", Filter(run_id="first")),
            ("second", Filter(run_id="second")),
            ("imported", Filter(source="import")),
        ):
            plan = ExportPlan(
                FORMATS["messages"], tmp_path / f"{name}.jsonl", TrajectorySelection(filters), eval_share=0.4
            )
            report = export(reader, plan)
            assert report.facts["split"]["groups"] == FAMILIES
            assert report.facts["split"]["joined"]["same prompt"] > 0
            for side in Side:
                for line in (tmp_path / f"{name}.{side}.jsonl").read_text("utf-8").splitlines():
                    sides[families[json.loads(line)["messages"][0]["content"]]].add(side)
        rounds = [gather_rows(reader, since_ms, 0.4) for since_ms in (0, 15)]
    for rows in rounds:
        for row in (*rows.pairs, *rows.spans):
            sides[families[row.prompt[0].content]].add(Side.TRAIN)
        for row in (*rows.held_out_pairs, *rows.held_out_spans):
            sides[families[row.prompt[0].content]].add(Side.EVAL)
        for method in (Method.DPO, Method.KTO):
            compared = [
                families[side.prompt[0].content]
                for comparison in held_out_comparisons(rows, method)
                for side in {
                    comparison.better.prompt: comparison.better,
                    comparison.worse.prompt: comparison.worse,
                }.values()
            ]
            if method is Method.DPO:
                assert len(compared) == len(set(compared)), "comparisons are not independent"
    assert len(sides) == FAMILIES
    assert {family: found for family, found in sides.items() if len(found) > 1} == {}
    assert {side for found in sides.values() for side in found} == set(Side)


def test_pairs_in_a_file_are_grouped_by_what_they_ask(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    families: dict[str, int] = {}
    rows = []
    for number in range(30):
        words = _sentence(draw)
        for copy in range(3):
            question = _variant(draw, words)
            families[question] = number
            rows.append(
                {"prompt": question, "chosen": "Yes.", "rejected": "No.", "task_id": f"{number}.{copy}"}
            )
    draw.shuffle(rows)
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = defaultdict(set)
    for pair in read_preference_files([file]).pairs:
        tasks[families[pair.prompt[0].content]].add(pair.task)
    assert all(len(found) == 1 for found in tasks.values())
    assert len({found.pop() for found in tasks.values()}) == 30


def test_a_template_does_not_make_one_group_of_all_tasks() -> None:
    template = " ".join(f"instruction{n}" for n in range(120))
    groups = group_tasks((f"{n}", f"{template} What is {n * 7919} times {n * 104729}?") for n in range(200))
    assert len(set(groups.keys.values())) == 200


def test_questions_of_a_template_are_still_joined_with_their_own_variants() -> None:
    prompts = [
        f"Explain in plain sentences what {n * 7919} means for the farmers of valley {n}." for n in range(60)
    ]
    tasks = [(f"a{n}", prompt) for n, prompt in enumerate(prompts)]
    tasks += [(f"b{n}", f"{'Please tell me: ' if n % 3 == 0 else ''}{p}") for n, p in enumerate(prompts)]
    groups = group_tasks(tasks)
    assert len(set(groups.keys.values())) == 60
    assert all(groups.key(f"a{n}") == groups.key(f"b{n}") for n in range(60))
    assert (groups.same_prompt, groups.near_prompt) == (40, 20)


def test_a_task_with_several_prompts_is_one_group_and_empty_prompts_join_nothing() -> None:
    groups = group_tasks([("a", "First?"), ("a", "Second?"), ("b", " second? "), ("c", ""), ("d", "")])
    assert groups.key("a") == groups.key("b")
    assert len({groups.key("a"), groups.key("c"), groups.key("d")}) == 3
    assert str(groups) == "4 tasks in 3 groups (1 joined by the same prompt, 0 by nearly the same)"


def test_a_group_keeps_its_side_when_others_join() -> None:
    words = " ".join(_sentence(random.Random(5)))
    before = group_tasks([("a", words)])
    after = group_tasks([("a", words), ("b", f"Well: {words}"), ("c", "Another question?")])
    assert side_of(before.key("a"), 0.5) is side_of(after.key("b"), 0.5)
    assert after.key("c") != after.key("a")
