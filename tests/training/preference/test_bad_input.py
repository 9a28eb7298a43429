"""Verdicts that cannot be trained on: the trainers say what is missing, and no rating is lost by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.cli.main import cli
from hermes.core import Message, Rating, RatingKind, new_id
from hermes.errors import HermesError
from hermes.store import Reader, Writer
from hermes.store.upkeep.delete import delete_trajectories
from tests.engine.http.engine_process import KEY, Server
from tests.records import record

QUESTIONS = 12
LONG = "a" * 400


@pytest.fixture
def home(tmp_path: Path, chat_engine: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (
        ("HERMES_HOME", str(tmp_path)),
        ("TINKER_BASE_URL", chat_engine.url),
        ("TINKER_API_KEY", KEY),
    ):
        monkeypatch.setenv(name, value)
    return tmp_path


def write_answers(home: Path, second: str = "no") -> list[tuple[str, str]]:
    """Two answers to each question."""
    with Writer(home / "hermes.db") as writer:
        return [
            (
                record(
                    writer,
                    [Message.user(f"q{number}"), Message.assistant("yes")],
                    tools=(),
                    task_id=f"t{number}",
                ),
                record(
                    writer,
                    [Message.user(f"q{number}"), Message.assistant(second)],
                    tools=(),
                    task_id=f"t{number}",
                ),
            )
            for number in range(QUESTIONS)
        ]


def rate(home: Path, ratings: list[Rating]) -> None:
    with Writer(home / "hermes.db") as writer:
        for rating in ratings:
            writer.add_rating(rating).result()


def choice(first: str, second: str, value: float, rater: str = "ann") -> Rating:
    return Rating(new_id(), first, RatingKind.PAIR, value, rater, 1, other_id=second)


def thumb(trajectory_id: str, value: float, rater: str = "ann") -> Rating:
    return Rating(new_id(), trajectory_id, RatingKind.THUMB, value, rater, 1)


def rating_ids(home: Path) -> set[str]:
    with Reader(home / "hermes.db") as reader:
        return {rating.id for rating in reader.all_ratings(everything=True)}


def refusal(home: Path, model: Path, *arguments: str) -> HermesError:
    """The error of the trainer. The ratings are afterwards what they were before."""
    before = rating_ids(home)
    with pytest.raises(HermesError) as caught:
        cli.main(
            ["train", *arguments, "--base-model", str(model), "--rank", "8"], "hermes", standalone_mode=False
        )
    assert rating_ids(home) == before and caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("verdicts", "reason"),
    [
        ([("ann", 0.0)], f"{QUESTIONS} left out (choice: no clear difference)"),
        ([("ann", 1.0), ("bob", -1.0)], f"{QUESTIONS} left out (choice: the raters contradict each other)"),
    ],
    ids=["ties only", "contradictions only"],
)
def test_choices_that_decide_nothing_make_no_pairs(
    home: Path, chat_model: Path, verdicts: list[tuple[str, float]], reason: str
) -> None:
    sides = write_answers(home)
    rate(home, [choice(*pair, value, rater) for pair in sides for rater, value in verdicts])
    for kind in ("dpo", "reward"):
        message = refusal(home, chat_model, kind).message
        assert message.startswith("there are 0 pairs to train on, and at least 8 are needed"), message
        assert reason in message


def test_too_few_pairs_and_pairs_that_are_too_long_are_counted(home: Path, chat_model: Path) -> None:
    sides = write_answers(home, second=LONG)
    rate(home, [choice(*pair, 1.0) for pair in sides[:3]])
    message = refusal(home, chat_model, "dpo", "--eval-share", "0").message
    assert message == "there are 3 pairs to train on, and at least 8 are needed"
    rate(home, [choice(*pair, 1.0) for pair in sides[3:]])
    message = refusal(home, chat_model, "dpo", "--eval-share", "0", "--max-tokens", "100").message
    assert f"there are 0 pairs to train on, and at least 8 are needed: {QUESTIONS} left out" in message
    assert "(longer than 100 tokens)" in message


def test_one_class_only_is_refused_by_kto_and_a_double_click_is_one_answer(
    home: Path, chat_model: Path
) -> None:
    sides = write_answers(home)
    once = [thumb(good, 1.0) for good, _ in sides]
    rate(home, [*once, *(thumb(good, 1.0) for good, _ in sides)])  # clicked again: another event each
    error = refusal(home, chat_model, "kto", "--eval-share", "0")
    assert error.message == f"all {QUESTIONS} rated answers are good: KTO needs good and bad ones"
    assert error.hint.startswith("rate some that are bad")


def test_ratings_of_a_deleted_trajectory_go_with_it_and_the_others_stay(home: Path, chat_model: Path) -> None:
    sides = write_answers(home)
    kept, gone = sides[:4], sides[4:]
    rate(home, [choice(*pair, 1.0) for pair in sides])
    delete_trajectories(home / "hermes.db", [good for good, _ in gone])
    assert len(rating_ids(home)) == len(kept)
    message = refusal(home, chat_model, "dpo", "--eval-share", "0").message
    assert message == f"there are {len(kept)} pairs to train on, and at least 8 are needed"
