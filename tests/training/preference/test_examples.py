"""Rows as the policy saw them: exact masks, windows, contradictions; what is wrong in one sentence."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hermes.core import Message, Role, ToolCall
from hermes.data.preference.pairs import PreferencePair, PreferenceSource
from hermes.envs.tokenise import load_tokenizer
from hermes.errors import HermesError, UsageError
from hermes.models.render.chat import ChatRenderer
from hermes.training.preference.examples import (
    RatedCompletion,
    RowLimits,
    pair_examples,
    render_completion,
    unpaired_examples,
)
from hermes.training.preference.readout import ReadOut, rating_prompt, readout_tokens
from hermes.training.preference.sources import read_preference_files

ASKED = (Message.system("Be brief."), Message.user("What is 12 * 4?"))
TOOLS = ({"name": "calculator", "description": "Computes.", "parameters": {"type": "object"}},)


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer.of(load_tokenizer("hermes/smollm2"), "hermes", 2048)


def pair(chosen: str, rejected: str, task: str = "t", margin: float = 1.0) -> PreferencePair:
    return PreferencePair(
        ASKED, (Message.assistant(chosen),), (Message.assistant(rejected),), "a", "b", 2,
        PreferenceSource.CHOICE, margin, task,
    )  # fmt: skip


def examples(pairs: list[PreferencePair], renderer: ChatRenderer, **changes: Any) -> Any:
    left_out = changes.pop("left_out", Counter())
    settings: dict[str, Any] = {"longest": 2048, "eval_share": 0.0, "min_rows": 1}
    return pair_examples(pairs, renderer, left_out, RowLimits(**{**settings, **changes}))


def test_only_the_tokens_that_the_model_wrote_are_in_the_loss(renderer: ChatRenderer) -> None:
    call = ToolCall("c1", "calculator", '{"expression": "12*4"}')
    completion = (
        Message.assistant("", tool_calls=(call,)),
        Message(Role.TOOL, "the result is 48", tool_call_id="c1", name="calculator"),
        Message.assistant("48, gladly."),
    )
    made = render_completion(ASKED, completion, TOOLS, renderer)
    (context,) = made.contexts
    trained = renderer.decode(
        [token for token, on in zip(context.tokens, context.loss_mask, strict=True) if on]
    )
    masked = renderer.decode(
        [token for token, on in zip(context.tokens, context.loss_mask, strict=True) if not on]
    )
    assert "12*4" in trained and "48, gladly." in trained and trained.count("<|im_end|>") == 2
    assert "the result is 48" in masked and "the result is 48" not in trained
    assert "What is 12 * 4?" in masked and "calculator" in masked
    # What comes before the first trained token is exactly the prompt that inference renders.
    from hermes.models.base import ChatRequest
    from hermes.models.render.template import encode

    prompt = encode(renderer.tokenizer, renderer.render(ChatRequest(ASKED, TOOLS), {}))
    assert list(context.tokens[: made.prompt_tokens]) == prompt


def test_opposite_verdicts_on_the_same_answers_cancel_and_the_majority_counts(renderer: ChatRenderer) -> None:
    rows = examples([pair("A", "B"), pair("B", "A"), pair("C", "D")], renderer)
    assert len(rows.train) == 1 and rows.left_out["another verdict says the opposite"] == 2
    rows = examples([pair("A", "B"), pair("A", "B"), pair("B", "A")], renderer)
    assert len(rows.train) == 2 and rows.left_out["another verdict says the opposite"] == 1
    with pytest.raises(HermesError, match=r"0 pairs to train on.*2 left out \(another verdict"):
        examples([pair("A", "B"), pair("B", "A")], renderer)


def test_a_pair_longer_than_the_window_is_left_out_whole(renderer: ChatRenderer) -> None:
    rows = examples([pair("short", "word " * 300), pair("A", "B")], renderer, longest=128)
    assert len(rows.train) == 1 and rows.left_out["longer than 128 tokens"] == 1
    with pytest.raises(HermesError, match=r"1 left out \(longer than 128 tokens\)"):
        examples([pair("short", "word " * 300)], renderer, longest=128)


def test_too_few_pairs_are_refused_with_how_many_there_are(renderer: ChatRenderer) -> None:
    with pytest.raises(
        HermesError, match="there are 2 pairs to train on, and at least 8 are needed"
    ) as error:
        examples([pair("A", "B", "1"), pair("C", "D", "2")], renderer, min_rows=8)
    assert "--min-rows" in error.value.hint


def rated(desirable: bool | None, number: int) -> RatedCompletion:
    return RatedCompletion(ASKED, (Message.assistant(f"answer {number}"),), 5.0, desirable, str(number))


@pytest.mark.parametrize(("label", "word"), [(True, "good"), (False, "bad")])
def test_one_class_only_is_refused(renderer: ChatRenderer, label: bool, word: str) -> None:
    rows = [rated(label, number) for number in range(10)]
    with pytest.raises(HermesError, match=f"all 10 rated answers are {word}: KTO needs good and bad ones"):
        unpaired_examples(rows, renderer, Counter(), RowLimits(2048, 0.0))


def test_ratings_in_the_middle_are_no_label(renderer: ChatRenderer) -> None:
    rows = [rated(None, number) for number in range(10)]
    with pytest.raises(HermesError, match=r"10 left out \(rated neither good nor bad\)"):
        unpaired_examples(rows, renderer, Counter(), RowLimits(2048, 0.0))


def test_rows_of_files_are_read_in_every_form_of_trl(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Q", "chosen": "A", "rejected": "B"},
        {"chosen": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}],
         "rejected": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "B"}],
         "margin": 0.5},
        {"prompt": [{"role": "user", "content": "Q"}], "completion": [{"role": "assistant", "content": "A"}],
         "label": True},
        {"prompt": "Q", "completion": "B", "rating": 3},
    ]  # fmt: skip
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_preference_files([file])
    assert [len(pair.prompt) for pair in read.pairs] == [1, 1]
    assert [pair.chosen[0].content for pair in read.pairs] == ["A", "A"]
    assert read.pairs[0].task == read.pairs[1].task, "pairs of one prompt are on the same side of a split"
    assert [pair.margin for pair in read.pairs] == [0.0, 0.5]
    assert [(row.score, row.desirable) for row in read.rated] == [(5.0, True), (3.0, None)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "Q", "chosen": "A"}, "it has no 'rejected'"),
        ({"prompt": "Q", "chosen": "A", "rejected": "A"}, "'chosen' and 'rejected' are equal"),
        ({"prompt": "Q", "completion": "A"}, "neither 'label' nor 'rating'"),
        ({"prompt": "Q", "completion": "A", "rating": 9}, "its rating is 9, not from 1 to 5"),
        ({"prompt": [], "chosen": "A", "rejected": "B"}, "not a list with at least one message"),
        ({"prompt": "Q", "completion": [{"role": "user", "content": "A"}], "label": True},
         "begin with the assistant"),
        ({"nothing": 1}, "it has no 'prompt'"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    file = tmp_path / "rows.jsonl"
    good = {"prompt": "Q", "chosen": "A", "rejected": "B"}
    file.write_text(json.dumps(good) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(UsageError, match=problem) as error:
        read_preference_files([file])
    assert error.value.message.startswith(f"{file}:2: ")


def test_the_read_out_compares_two_words_at_the_end_of_the_same_prompt(renderer: ChatRenderer) -> None:
    readout = ReadOut()
    words = readout_tokens(readout, renderer)
    assert renderer.decode([words.good]) == "good" and renderer.decode([words.bad]) == "bad"
    prompt = rating_prompt((*ASKED, Message.assistant("48.")), (), readout, renderer)
    text = renderer.decode(prompt)
    assert text.endswith("<|im_start|>assistant\n") and text.index("48.") < text.index(readout.question)
    with pytest.raises(HermesError, match="begin with the same token"):
        readout_tokens(ReadOut(good="good", bad="good one"), renderer)
