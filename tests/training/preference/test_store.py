"""Rows from the store: what was rated, and nothing else; and which adapter answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.core import Message, Rating, RatingKind, TokenTrace, new_id
from hermes.data.export.select import EVERYTHING
from hermes.envs.tokenise import load_tokenizer
from hermes.errors import UsageError
from hermes.models.render.chat import ChatRenderer
from hermes.store import Filter, Reader, Writer
from hermes.training.policy_registry import PolicyRecord, PolicyRegistry, new_policy_id
from hermes.training.preference.reference import BASE
from hermes.training.preference.sources import answers_reference, from_ratings, from_store
from tests.records import model_call, record

ASKED = Message.user("What is 2 + 2?")


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer.of(load_tokenizer("hermes/smollm2"), "hermes", 2048)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    with Writer(tmp_path / "hermes.db") as opened:
        yield opened


def rate(writer: Writer, trajectory_id: str, value: float, step: int | None = None) -> None:
    rating = Rating(new_id(), trajectory_id, RatingKind.SCORE, value, "ann", 1, step_index=step)
    writer.add_rating(rating).result()


def test_sft_with_a_least_rating_trains_on_the_answers_that_have_it(
    writer: Writer, tmp_path: Path, renderer: ChatRenderer
) -> None:
    messages = [
        ASKED,
        Message.assistant("Four, gladly."),
        Message.user("And 3 + 3?"),
        Message.assistant("Dunno."),
    ]
    trajectory_id = record(writer, messages, tools=())
    rate(writer, trajectory_id, 5, step=1)
    rate(writer, trajectory_id, 1, step=3)
    left_out: Counter[str] = Counter()
    with Reader(tmp_path / "hermes.db") as reader:
        # The trajectory's latest rating is 1: a bound on trajectories would lose the good answer.
        selection = replace(EVERYTHING, filters=Filter(min_rating=4.0))
        (example,) = from_ratings(reader, selection, 4.0, renderer, left_out)
    trained = [token for token, on in zip(example.tokens, example.loss_mask, strict=True) if on]
    assert renderer.decode(trained) == "Four, gladly.<|im_end|>"
    assert "Dunno" not in renderer.decode(example.tokens) and left_out["rated below 4"] == 1


def test_pairs_and_rated_answers_come_with_the_adapter_that_gave_them(writer: Writer, tmp_path: Path) -> None:
    def answered(text: str, policy: str) -> str:
        trace = TokenTrace((1, 2), (3,), (-0.5,), policy)
        return record(writer, [ASKED, Message.assistant(text)], tools=(), call=model_call(tokens=trace))

    path = "tinker://m:train:0/sampler_weights/step-4"
    good, bad = answered("4.", path), answered("Well, let me think.", path)
    rate(writer, good, 5)
    rate(writer, bad, 1)
    with Reader(tmp_path / "hermes.db") as reader:
        data = from_store(reader, EVERYTHING, ("rating",), 0.0)
    (pair,) = data.pairs
    assert (pair.chosen[0].content, pair.rejected[0].content) == ("4.", "Well, let me think.")
    assert sorted(row.desirable for row in data.rated if row.desirable is not None) == [False, True]
    assert answers_reference(data, tmp_path) == path
    rate(writer, answered("Four?", "tinker://n:train:0/sampler_weights/step-1"), 3)
    with Reader(tmp_path / "hermes.db") as reader:
        several = from_store(reader, EVERYTHING, ("rating",), 0.0)
    with pytest.raises(UsageError, match="the answers came from 2 adapters"):
        answers_reference(several, tmp_path)
    assert answers_reference(replace(data, policies=frozenset()), tmp_path) == BASE


def test_answers_of_a_promoted_policy_in_chat_and_served_came_from_one_adapter(
    writer: Writer, tmp_path: Path
) -> None:
    path = "tinker://m:train:0/sampler_weights/step-4"
    policy = PolicyRecord(new_policy_id(), "hermes/smollm2", path.replace("sampler_", ""), path)
    PolicyRegistry(tmp_path).add(policy)
    chat = record(writer, [ASKED, Message.assistant("4.")], tools=(), model=f"policy:{policy.id}")
    trace = TokenTrace((1, 2), (3,), (-0.5,), path)
    served = record(writer, [ASKED, Message.assistant("Hm.")], tools=(), call=model_call(tokens=trace))
    rate(writer, chat, 5)
    rate(writer, served, 1)
    with Reader(tmp_path / "hermes.db") as reader:
        data = from_store(reader, EVERYTHING, ("rating",), 0.0)
    assert data.policies == {path, f"policy:{policy.id}"}
    assert answers_reference(data, tmp_path) == path
