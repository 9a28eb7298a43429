"""A training row shows the thinking that the model was shown when it answered, and no other."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes.config.paths import db_path
from hermes.core import Message, Rating, RatingKind, StepKind, new_id
from hermes.data.compress.run.job import CompressResult, InputKind
from hermes.data.compress.run.pipeline import record_derived
from hermes.data.example import load
from hermes.data.export.run import ExportPlan, preview
from hermes.data.formats.base import Thinking
from hermes.data.formats.registry import FORMATS
from hermes.data.importing import import_files
from hermes.data.preference.rows import read_rows
from hermes.models.base import ChatRequest
from hermes.models.parsers import get_parser
from hermes.models.render.chat import ChatRenderer
from hermes.models.render.escape import Rendered
from hermes.models.render.template import seen_thinking
from hermes.policies.improve import pair_row
from hermes.store import Reader, Writer
from hermes.training.data.sft_examples import examples_of
from hermes.training.preference.sources import read_preference_files
from tests.agent.conftest import World, world
from tests.envs.templates import FAMILIES, Family, bundled_tokenizer, dressed
from tests.fakes.provider import FakeProvider, Reply, text, tool_calls

__all__ = ["world"]
Rows = list[dict[str, Any]]


def drawn(seed: int) -> Callable[[dict[str, Any]], Reply]:
    """Answers with unique contents, most of them with thinking and a call of a tool."""
    draw = random.Random(seed)

    def answer(body: dict[str, Any]) -> Reply:
        number = sum(message["role"] == "assistant" for message in body["messages"])
        thinking = f"thought {number} of {seed}" if draw.random() < 0.7 else None
        if draw.random() < 0.6 and body["messages"][-1]["role"] == "user":
            expression = {"expression": f"{number} + 1"}
            return tool_calls([("calculate", expression)], content=f"said {number}.", reasoning=thinking)
        return text(f"said {number}.", reasoning=thinking)

    return answer


async def record(here: World, turns: int) -> str:
    async with here.agent() as loop:
        loop.prepare(Message.system("Be brief."))
        for turn in range(turns):
            async for _ in loop.turn(Message.user(f"question {turn}")):
                pass
    return loop.recorder.header.id


def rows_of(home: Path, name: str, thinking: Thinking = Thinking.SEEN) -> Rows:
    with Reader(db_path(home)) as reader:
        plan = ExportPlan(FORMATS[name], Path("x.jsonl"), thinking=thinking)
        return preview(reader, plan, 1000)[0]


def shown(sent: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Content and thinking of the messages that a request held."""
    return [(message["content"] or "", message.get("reasoning_content")) for message in sent["messages"]]


@pytest.mark.parametrize("send_reasoning", [False, True])
async def test_rows_show_what_was_sent(world: Callable[..., World], send_reasoning: bool) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with FakeProvider(drawn(seed)) as provider:
        here = world(
            provider,
            settings={
                "providers.custom.send_reasoning": send_reasoning,
                "providers.custom.base_url": provider.base_url,
            },
        )
        trajectory_id = await record(here, turns=6)
        requests = [shown(request.json) for request in provider.posts]
    answers = iter(requests)
    for row in rows_of(here.home, "axolotl"):
        turns = [(turn["content"], turn.get("reasoning_content")) for turn in row["messages"]]
        for index, turn in enumerate(row["messages"]):
            if turn["train"]:
                assert turns[:index] == next(answers)
    assert next(answers, None) is None, "every answer is learned once"
    for row in rows_of(here.home, "trl-prompt-completion"):
        assert row["completion"][0]["role"] == "assistant"
        assert [(t["content"], t.get("reasoning_content")) for t in row["prompt"]] in requests
    with Reader(db_path(here.home)) as reader:
        trajectory = reader.get(trajectory_id)
        calls = [step for step in trajectory.steps if step.kind is StepKind.MODEL]
        for step, sent in zip(calls, requests, strict=True):
            messages, _ = reader.model_input(trajectory_id, step)
            assert [(message.content, message.reasoning) for message in messages] == sent
    whole = rows_of(here.home, "trl-sft", Thinking.ALL)
    assert len(whole) == 1
    assert [turn.get("reasoning_content") for turn in whole[0]["messages"]] == [
        message.reasoning for message in trajectory.messages
    ]
    if send_reasoning:
        assert rows_of(here.home, "trl-sft") == whole


async def test_a_rated_answer_follows_what_its_call_was_shown(world: Callable[..., World]) -> None:
    with FakeProvider(drawn(3)) as provider:
        here = world(provider)
        trajectory_id = await record(here, turns=4)
    with Writer(db_path(here.home)) as writer:
        rating = Rating(new_id(), trajectory_id, RatingKind.THUMB, 1.0, "somebody", created_at_ms=1)
        writer.add_rating(rating).result()
    (row,) = rows_of(here.home, "trl-unpaired")
    assert not any(turn.get("reasoning_content") for turn in row["prompt"])
    (row,) = rows_of(here.home, "trl-unpaired", Thinking.ALL)
    assert any(turn.get("reasoning_content") for turn in row["prompt"])


def contexts(messages: list[dict[str, Any]], first: int) -> list[list[tuple[str, str | None]]]:
    """What a row shows before each answer from `first` on."""
    turns = [(message["content"], message.get("reasoning_content")) for message in messages]
    return [
        turns[:index]
        for index, message in enumerate(messages)
        if index >= first and message["role"] == "assistant"
    ]


@pytest.mark.parametrize("send_reasoning", [False, True])
async def test_rows_of_rated_turns_show_each_call_what_it_was_shown(
    world: Callable[..., World], send_reasoning: bool
) -> None:
    seeds = random.sample(range(2**32), 2)
    print(f"seeds {seeds}")
    sides: list[tuple[str, list[list[tuple[str, str | None]]]]] = []
    for seed in seeds:
        with FakeProvider(drawn_calls(seed)) as provider:
            settings = {"send_reasoning": send_reasoning, "base_url": provider.base_url}
            here = world(
                provider,
                settings={f"providers.custom.{name}": value for name, value in settings.items()},
            )
            trajectory_id = await record(here, turns=1)
            sides.append((trajectory_id, [shown(request.json) for request in provider.posts]))
    with Writer(db_path(here.home)) as writer:
        for (trajectory_id, _), value in zip(sides, (1.0, -1.0), strict=True):
            rating = Rating(new_id(), trajectory_id, RatingKind.THUMB, value, "somebody", created_at_ms=1)
            writer.add_rating(rating).result()
    unpaired = rows_of(here.home, "trl-unpaired")
    for trajectory_id, requests in sides:
        rows = [row for row in unpaired if row["id"] == trajectory_id]
        shown_in_rows = [
            context
            for row in rows
            for context in contexts(row["prompt"] + row["completion"], len(row["prompt"]))
        ]
        assert shown_in_rows == requests, "each call once, after exactly what it was shown"
        assert all(row["completion"][0]["role"] == "assistant" for row in rows)
    pairs = rows_of(here.home, "trl-preference")
    (whole,) = rows_of(here.home, "trl-preference", Thinking.ALL)
    assert len(whole["chosen"]) == 5, "two calls with results, and the answer"
    assert all(turn["reasoning_content"] for turn in whole["chosen"][::2])
    assert pairs == ([whole] if send_reasoning else [])
    with Reader(db_path(here.home)) as reader:
        (pair,) = read_rows(reader).pairs
    assert bool(pair.chosen_unseen) is not send_reasoning
    path = here.home / "pairs.jsonl"
    path.write_text(json.dumps(pair_row(pair)) + "\n", "utf-8")
    (read_again,) = read_preference_files([path]).pairs
    assert read_again.chosen_unseen == pair.chosen_unseen
    assert read_again.rejected_unseen == pair.rejected_unseen


def drawn_calls(seed: int) -> Callable[[dict[str, Any]], Reply]:
    """Two calls of a tool, then an answer; all with thinking."""

    def answer(body: dict[str, Any]) -> Reply:
        number = sum(message["role"] == "assistant" for message in body["messages"])
        thinking = f"thought {number} of {seed}"
        if number == 2:
            return text(f"said {seed}.", reasoning=thinking)
        expression = {"expression": f"{seed} + {number}"}
        return tool_calls([("calculate", expression)], content=f"said {number}.", reasoning=thinking)

    return answer


async def test_rows_without_earlier_thinking(world: Callable[..., World]) -> None:
    """The form for records that do not say what was shown: imported ones, and those of earlier versions."""
    with FakeProvider(drawn(7)) as provider:
        here = world(provider)
        await record(here, turns=5)
    exact = rows_of(here.home, "axolotl")
    (conversation,) = rows_of(here.home, "messages")
    path = here.home / "imported.jsonl"
    path.write_text(
        json.dumps({"messages": conversation["messages"], "tools": conversation["tools"]}), "utf-8"
    )
    with Writer(db_path(here.home)) as writer, Reader(db_path(here.home)) as reader:
        assert import_files([path], reader, writer).rows == 1
    recorded_id = conversation["id"]
    assert len([row for row in rows_of(here.home, "axolotl") if row["id"] != recorded_id]) == 1
    imported = [row for row in rows_of(here.home, "axolotl", Thinking.NONE) if row["id"] != recorded_id]
    strip = [
        [(turn["content"], turn.get("reasoning_content"), turn["train"]) for turn in row["messages"]]
        for row in exact
    ]
    assert len(strip) > 1
    assert strip == [
        [(turn["content"], turn.get("reasoning_content"), turn["train"]) for turn in row["messages"]]
        for row in imported
    ]


async def test_the_trainer_reads_the_same_prompts(world: Callable[..., World], bundled_home: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with FakeProvider(drawn(seed)) as provider:
        here = world(provider)
        trajectory_id = await record(here, turns=4)
    with Reader(db_path(here.home)) as reader:
        example = load(reader, reader.get(trajectory_id))
    tokenizer = bundled_tokenizer(bundled_home)
    renderer = ChatRenderer.of(tokenizer, get_parser("hermes").name, 8192)
    in_loss = [message.role.value == "assistant" for message in example.messages]
    learned = ""
    for sequence in examples_of(example.messages, in_loss, (), renderer, example.unseen):
        ids = list(zip(sequence.tokens, sequence.loss_mask, strict=True))
        learned += tokenizer.decode([token for token, in_its_loss in ids if in_its_loss])
        context = tokenizer.decode([token for token, in_its_loss in ids if not in_its_loss])
        assert "<think>" not in context
    for message in example.messages:
        assert message.reasoning is None or learned.count(f"{message.reasoning}\n") == 1
    everything = examples_of(example.messages, in_loss, (), renderer)
    assert len(everything) == 1, "this template drops no thinking"


async def test_a_continued_attempt_uses_records_of_calls_that_saw_no_thinking(
    world: Callable[..., World],
) -> None:
    from hermes.agent.replay import RecordedSteps

    with FakeProvider(drawn(5)) as provider:
        here = world(provider)
        trajectory_id = await record(here, turns=3)
        asked = len(provider.posts)
        with Reader(db_path(here.home)) as reader:
            recorded = RecordedSteps(reader.record(reader.get(trajectory_id)))
        async with here.agent() as loop:
            loop.recorded = recorded
            loop.prepare(Message.system("Be brief."))
            for turn in range(3):
                async for _ in loop.turn(Message.user(f"question {turn}")):
                    pass
        assert len(provider.posts) == asked, "nothing is asked again"
        with Reader(db_path(here.home)) as reader:
            again = load(reader, reader.get(loop.recorder.header.id))
            first = load(reader, reader.get(trajectory_id))
    assert again.unseen == first.unseen != frozenset()
    assert again.messages == first.messages


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_template_that_drops_thinking_is_noticed(family: Family, bundled_home: Path) -> None:
    renderer = ChatRenderer.of(dressed(bundled_tokenizer(bundled_home), family), "hermes", 8192)
    messages = tuple(
        message
        for turn in range(3)
        for message in (
            Message.user(f"question {turn}"),
            Message.assistant(f"answer {turn}", reasoning=f"thought {turn}"),
        )
    )[:-1]

    def prompt(shown: tuple[Message, ...]) -> Rendered:
        return renderer.render(ChatRequest(shown), {})

    seen = seen_thinking(messages, prompt) or messages
    text = prompt(messages).text
    expected = [m.reasoning if m.reasoning and m.reasoning in text else None for m in messages]
    assert [message.reasoning for message in seen] == expected


async def test_a_version_with_folds_hides_the_same_thinking(world: Callable[..., World]) -> None:
    with FakeProvider(drawn(11)) as provider:
        here = world(provider)
        trajectory_id = await record(here, turns=4)
    derived_id = new_id()
    with Reader(db_path(here.home)) as reader, Writer(db_path(here.home)) as writer:
        example = load(reader, reader.get(trajectory_id))
        folded = (example.messages[0].to_json(), None, *(m.to_json() for m in example.messages[2:]))
        notes = {"parent_id": trajectory_id}
        done = CompressResult(InputKind.ROW, messages=folded, derived_id=derived_id, notes=notes)
        record_derived(reader, writer, done)
        derived = load(reader, reader.get(derived_id))
    assert derived.unseen == {(answer - 1, earlier - 1) for answer, earlier in example.unseen} != set()
