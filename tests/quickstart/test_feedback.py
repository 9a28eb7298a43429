"""The second act: its rule, its questions, its rows, and all of it once with the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.envs.tasks.split import Split
from hermes.quickstart.feedback.answers import PolicyAnswers
from hermes.quickstart.feedback.rule import examples, judge, questions
from hermes.quickstart.feedback.stages import split_pairs
from tests.cli.process import hermes


@pytest.mark.parametrize(
    ("text", "stars"),
    [
        ("12 eggs. You are welcome!", 5),
        ("12 eggs.", 4),
        ("12 eggs, which I computed by adding the eggs of all the boxes one by one, gladly.", 3),
        ("Thank you, it is 12.", 3),
        ("The answer is twelve.", 2),
        ("To solve this problem, we need to add the eggs of every box one after the other.", 1),
        ("", 1),
    ],
)
def test_the_rule_likes_short_polite_answers_with_the_figure_first(text: str, stars: int) -> None:
    assert judge(text).stars == stars


def test_the_examples_are_what_the_rule_likes() -> None:
    assert all(judge(message.content).stars == 5 for message in examples()[1::2])


def test_no_held_out_question_is_trained_on() -> None:
    trained, held_out = questions(Split.TRAIN, 400, 0), questions(Split.EVAL, 100, 1)
    assert len(set(trained)) == 400 and len(set(held_out)) == 100 and not set(trained) & set(held_out)
    assert questions(Split.TRAIN, 400, 0) == trained


def test_a_policy_wins_where_the_rule_gives_more_stars_and_a_tie_counts_half() -> None:
    base = PolicyAnswers(("Well, it is 3.", "3.", "3."))
    better = PolicyAnswers(("3. You are welcome!", "3.", "Hm."))
    assert better.wins_against(base).mean == pytest.approx((1 + 0.5 + 0) / 3)


@pytest.fixture
def home(bundled_home: Path, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(bundled_home / "models")
    return home


def pairs_file(folder: Path) -> Path:
    path = folder / "pairs.jsonl"
    rows = [{"prompt": f"q{number // 2}", "chosen": "good", "rejected": "bad"} for number in range(400)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_pairs_of_one_question_are_on_one_side(tmp_path: Path) -> None:
    train, held_out = split_pairs(pairs_file(tmp_path), 0.2)
    sides = [
        {json.loads(line)["prompt"] for line in path.read_text().splitlines()} for path in (train, held_out)
    ]
    assert not sides[0] & sides[1] and 20 < len(sides[1]) < 60


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_stage_of_the_second_act_runs_once(home: Path, tmp_path: Path) -> None:
    done = hermes(
        home, "quickstart", "feedback", "--fast", "--output", str(tmp_path), "--json", timeout_s=2300
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert list(outcome["policies"]) == ["base", "after DPO"]
    assert outcome["answers"] == 32 and 1 <= outcome["stars"] <= 5
    assert (Path(outcome["folder"]) / "before-after.svg").read_text().startswith("<svg ")
