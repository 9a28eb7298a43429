"""The loss view of every export format, over rows that the formats really write."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.config.paths import db_path
from hermes.core import Message, Rating, RatingKind, new_id
from hermes.data.export.run import ExportPlan, preview
from hermes.data.formats.registry import FORMATS
from hermes.store import Reader, Writer
from hermes.web.render.loss import NO_TRAINING_DATA, loss_view
from tests.records import record
from tests.web.samples import fill

PAIRS = {"trl-preference", "openai-preference"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attempts at coding tasks; a pair of single answers, one good, one bad; one whose step is rated."""
    home = tmp_path_factory.mktemp("loss")
    fill(home, 8)
    with Writer(db_path(home)) as writer:

        def rated(text: str, kind: RatingKind, value: float, step: int | None = None) -> None:
            answer = [Message.user("What is 2 + 2?"), Message.assistant(text)]
            trajectory = record(writer, answer, task_id=f"sum-{kind}")
            rating = Rating(new_id(), trajectory, kind, value, "ana", 1, step_index=step)
            writer.add_rating(rating).result()

        rated("It is 4.", RatingKind.THUMB, 1.0)
        rated("It is 5.", RatingKind.THUMB, -1.0)
        rated("It is four.", RatingKind.STEP, 1.0, 1)
    return home


@pytest.mark.parametrize("name", FORMATS)
def test_the_view_of_a_format(home: Path, name: str) -> None:
    with Reader(db_path(home)) as reader:
        rows, _ = preview(reader, ExportPlan(FORMATS[name], Path("x.jsonl")), 20)
    assert rows
    for row in rows:
        view = loss_view(name, row)
        if name in NO_TRAINING_DATA:
            assert view is None
            continue
        assert view is not None and 0 < view.trained < view.total
        assert all(
            not span.in_loss for span in view.spans if span.label in ("system", "user", "tool", "human")
        )
        assert view.unit == ("tokens" if name == "tokens" else "characters")
    if name in PAIRS:
        views = [view for row in rows if (view := loss_view(name, row))]
        trained = [[span.text for span in view.spans if span.in_loss] for view in views]
        assert ["It is 4.", "It is 5."] in trained


def test_a_turn_that_the_row_excludes_carries_no_loss() -> None:
    for mark in ({"weight": 0}, {"train": False}):
        turns = [{"role": "assistant", "content": "old", **mark}, {"role": "assistant", "content": "new"}]
        view = loss_view("messages", {"messages": turns})
        assert view is not None
        assert [(span.text, span.in_loss) for span in view.spans] == [("old", False), ("new", True)]
        assert (view.trained, view.total) == (3, 6)
