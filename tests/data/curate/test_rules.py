"""Curation rules: each removes what it says it does, with a reason, and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.core import Message, ToolErrorKind, ToolResult
from hermes.data.curate.base import (
    Contamination,
    Curation,
    EvalSet,
    Language,
    Length,
    NearDuplicates,
    ToolSuccess,
    detect,
    read_eval_set,
    sign,
    similarity,
)
from hermes.data.example import Example
from hermes.errors import UsageError
from tests import records
from tests.data import made


def ask(question: str, answer: str = "Fine.") -> Example:
    return made.example([Message.user(question), Message.assistant(answer)])


def words(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return [f"w{draw.randrange(5000)}" for _ in range(count)]


def jaccard(left: list[str], right: list[str]) -> float:
    a, b = ({tuple(side[i : i + 5]) for i in range(len(side) - 4)} for side in (left, right))
    return len(a & b) / len(a | b)


def test_length_bounds_turns_and_characters() -> None:
    two_turns = made.example(records.conversation())
    assert Length().remove(two_turns) is None
    assert Length(min_turns=3).remove(two_turns) == "2 turns, fewer than 3"
    assert Length(max_turns=1).remove(two_turns) == "2 turns, more than 1"
    assert Length(max_chars=10_000).remove(two_turns) is None
    long = ask("x" * 10_001)
    why = Length(max_chars=10_000).remove(long)
    assert why is not None
    assert why.endswith("more than 10000")


def test_tool_success_counts_results_and_spares_those_without_calls() -> None:
    example = made.example(records.conversation())
    failed = ToolResult("call_1", "calculator", False, 1.0, ToolErrorKind.FAILED)
    steps = tuple(replace(s, result=failed) if s.result else s for s in example.trajectory.steps)
    broken = replace(example, trajectory=replace(example.trajectory, steps=steps))
    assert ToolSuccess(1.0).remove(example) is None
    assert ToolSuccess(0.5).remove(broken) == "0 of 1 tool calls worked"
    assert ToolSuccess(1.0).remove(ask("hi")) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("What is the best way to get to the station from here?", "en"),
        ("Wie komme ich von hier aus am besten zum Bahnhof und was kostet das?", "de"),
        ("Quelle est la meilleure façon de se rendre à la gare, et le prix du billet ?", "fr"),
        ("¿Cuál es la mejor manera de llegar a la estación y qué precio tiene el billete?", "es"),
        ("Qual è il modo migliore per andare alla stazione e che prezzo ha il biglietto?", "it"),
        ("Qual é a melhor maneira de chegar à estação e o preço do bilhete para você?", "pt"),
        ("Wat is de beste manier om op het station te komen en wat kost het?", "nl"),
        ("从这里怎么去车站？", "zh"),
        ("駅までの行き方を教えてください", "ja"),
        ("역까지 어떻게 가나요?", "ko"),
        ("Как добраться до вокзала?", "ru"),
        ("كيف أصل إلى المحطة؟", "ar"),
        ("ok", "unknown"),
        ("ls -la /tmp", "unknown"),
        ("```python\nfor the in of and to is\n``` 12", "unknown"),
    ],
)
def test_the_language_of_a_few_words_is_told_or_called_unknown(text: str, code: str) -> None:
    assert detect(text) == code


def test_only_the_wanted_languages_stay_and_code_does_not_count() -> None:
    rule = Language(("en",))
    english = ask(
        "How do I list the files in this folder?", "Use this for it:\n```\nls -la\n```\nThat is all."
    )
    assert rule.remove(english) is None
    assert rule.remove(
        ask("Wie sehe ich die Dateien in einem Ordner?", "Mit dem Befehl ls und nicht mit dir.")
    ) == ("language: de")
    assert rule.remove(ask("?", "!")) == "language: unknown"


@pytest.mark.parametrize("changes", [0, 2, 5, 10, 40, 200])
def test_the_estimate_is_near_the_true_similarity(changes: int) -> None:
    left = words(1, 500)
    right = list(left)
    for at in random.Random(changes).sample(range(500), changes):
        right[at] = f"other{at}"
    estimate = similarity(sign(" ".join(left)), sign(" ".join(right)))
    assert abs(estimate - jaccard(left, right)) < 0.12


def test_near_duplicates_go_and_the_oldest_stays() -> None:
    rule = NearDuplicates(0.8)
    text = words(2, 300)
    nearly = [*text[:150], "changed", *text[151:]]
    first, copy, near = ask(" ".join(text)), ask(" ".join(text)), ask(" ".join(nearly))
    others = [ask(" ".join(words(seed, 300))) for seed in range(3, 40)]
    kept = Curation((rule,))
    assert [kept.keeps(each) for each in (first, *others)] == [True] * 38
    assert not kept.keeps(copy)
    assert not kept.keeps(near)
    assert [removal.id for removal in kept.removed] == [copy.id, near.id]
    assert kept.removed[0].why == f"1.00 like {first.id}"


def test_short_texts_are_duplicates_only_when_they_say_the_same() -> None:
    rule = NearDuplicates(0.85)
    assert rule.remove(ask("What is 2 + 2?", "4")) is None
    assert rule.remove(ask("What is 3 + 3?", "6")) is None
    assert rule.remove(ask("What is 2 + 2?", "4")) is not None


def test_what_contains_a_stretch_of_the_eval_set_goes(tmp_path: Path) -> None:
    secret = "If a train leaves at noon and travels sixty miles an hour how far has it gone by three"
    path = tmp_path / "eval.jsonl"
    path.write_text(
        f'{{"question": "Short one?"}}\n{{"question": "{secret}", "answer": "180 miles"}}\n', "utf-8"
    )
    against = read_eval_set(path)
    assert against.too_short == 2
    rule = Contamination(against)
    assert rule.settings() == {"against": "eval.jsonl", "items": 1, "too_short": 2}
    assert rule.remove(ask(f"Solve: {secret.upper()}!")) == "contains line 2 of eval.jsonl"
    assert rule.remove(ask("x", f"They asked me: {secret}")) == "contains line 2 of eval.jsonl"
    assert rule.remove(ask("How far has a train gone by three if it leaves at noon?")) is None


def test_a_short_item_counts_as_a_whole() -> None:
    against = EvalSet("e")
    against.add("who wrote the old book", 1)
    rule = Contamination(against)
    assert rule.remove(ask("Tell me who wrote the old book please")) == "contains line 1 of e"
    assert rule.remove(ask("Who wrote an old book?")) is None


def test_an_eval_set_that_cannot_be_read_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    path.write_text('{"question": "x"}\nnot json\n', "utf-8")
    with pytest.raises(UsageError, match=r"eval.jsonl:2: not JSON"):
        read_eval_set(path)
    (tmp_path / "eval.txt").write_text("one two three four five six\n\n", "utf-8")
    assert read_eval_set(tmp_path / "eval.txt").lengths == {6: 1}


def test_the_first_rule_that_objects_decides() -> None:
    curation = Curation((Length(min_turns=5), Language(("de",))))
    assert not curation.keeps(ask("What is the answer to this?"))
    assert [removal.rule for removal in curation.removed] == ["length"]
