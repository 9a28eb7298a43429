"""From ratings to a promotion, with a real engine and a tiny model: real ratings promote, random ones not."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hermes.core import Message
from hermes.data.preference.rows import RatedSpan
from hermes.errors import UsageError
from hermes.policies.improve import should_promote
from hermes.policies.rows import (
    HeldOutComparison,
    ImprovementRows,
    Method,
    RatedAnswerText,
    choose_method,
    gather_rows,
    held_out_comparisons,
)
from hermes.policies.scoring import ComparisonGain
from hermes.policies.sequential import run_test
from hermes.store import Reader, Writer
from tests.cli.process import failure, hermes
from tests.engine.http.engine_process import make_tiny
from tests.policies.rated_store import write_rated_store

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny(tmp_path_factory.mktemp("models") / "tiny")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def run_improve(home: Path, tiny: Path, *arguments: str) -> dict[str, object]:
    done = hermes(
        *(home, "improve", "--base-model", str(tiny), "--rank", "8", "--max-tokens", "200"),
        *("--epochs", "6", "--batch-size", "16", "--learning-rate", "0.01", "--answer-tokens", "8"),
        *("--device", "cpu", "--json", *arguments),
        timeout_s=400,
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return facts


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_ratings_promote(tmp_path: Path, tiny: Path) -> None:
    write_rated_store(tmp_path, 64)
    first = run_improve(tmp_path, tiny, "--examples", "2")
    assert first["promoted"] is True, first
    record = json.loads(hermes(tmp_path, "policy", "show", "--json").stdout)
    assert record["id"] == first["policy"] and record["method"] == "dpo"
    with Reader(tmp_path / "hermes.db") as reader:
        stored = {rating.id for rating in reader.all_ratings()}
    assert len(record["ratings"]) > 40 and set(record["ratings"]) <= stored  # from ratings to weights
    page = Path(str(first["report"]))
    assert "Promoted" in page.read_text() and "What got worse" in page.read_text()
    assert "<h1>" in page.with_name("report.html").read_text()
    error, fix = failure(hermes(tmp_path, "improve", "--base-model", str(tiny), "--device", "cpu"), 2)
    assert "no new ratings" in error and "rate" in fix
    assert "base" in hermes(tmp_path, "policy", "rollback").stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_random_ratings_keep_the_old_policy(tmp_path: Path, tiny: Path) -> None:
    write_rated_store(tmp_path, 64, random_ratings=True)
    result = run_improve(tmp_path, tiny, "--examples", "0")
    assert result["promoted"] is False
    assert json.loads(hermes(tmp_path, "policy", "list", "--json").stdout)["current"] == "base"
    assert "Kept the old policy" in Path(str(result["report"])).read_text()


def test_random_ratings_promote_nothing_in_twenty_of_twenty_seeds() -> None:
    """The decision alone: a candidate that moved likelihoods at will, against labels that a coin gave."""
    nothing = RatedAnswerText((), (), ())
    for seed in range(20):
        draw = random.Random(seed)
        gains = []
        for number in range(60):
            likes = (draw.gauss(0.5, 1.0), draw.gauss(-0.5, 1.0))  # it learned something, sure
            better, worse = likes if draw.random() < 0.5 else likes[::-1]  # but not what people prefer
            gains.append(ComparisonGain(HeldOutComparison(nothing, nothing, str(number)), better, worse))
        assert not should_promote(run_test([gain.result for gain in gains]), None)


def test_a_candidate_that_is_worse_on_tasks_is_not_promoted() -> None:
    better, worse = run_test([1.0] * 30), run_test([0.0] * 30)
    assert should_promote(better, None)
    assert should_promote(better, run_test([1.0, 0.0]))
    assert not should_promote(better, worse)


def span(number: int, desirable: bool | None, task: str | None = None) -> RatedSpan:
    score = 3.0 if desirable is None else 5.0 if desirable else 1.0
    messages = (Message.user("q"),), (Message.assistant("a"),)
    return RatedSpan(*messages, score, desirable, f"T{number:03}", None, task or str(number))


def test_the_method_is_chosen_by_how_much_there_is_and_said() -> None:
    rows = ImprovementRows(spans=[span(number, number % 2 == 0) for number in range(40)])
    method, reason = choose_method(rows)
    assert method is Method.KTO and "20 good and 20 bad" in reason and "too few pairs" in reason
    with pytest.raises(UsageError, match="too little for dpo"):
        choose_method(rows, Method.DPO)
    with pytest.raises(UsageError, match="no bad answer"):
        choose_method(ImprovementRows(spans=[span(number, True) for number in range(40)]))
    with pytest.raises(UsageError, match="no new ratings"):
        choose_method(ImprovementRows())


def test_held_out_comparisons_share_no_task(tmp_path: Path) -> None:
    spans = [span(number, number % 3 > 0, task=str(number // 2)) for number in range(60)]
    comparisons = held_out_comparisons(ImprovementRows(held_out_spans=spans), Method.KTO)
    tasks = [task for comparison in comparisons for task in comparison.task.split(" | ")]
    assert len(tasks) == len(set(tasks)) and comparisons
    write_rated_store(tmp_path, 40)
    with Reader(tmp_path / "hermes.db") as reader:
        rows = gather_rows(reader, 0, 0.3)
        later = gather_rows(reader, 1039, 0.3)
    assert len(rows.pairs) + len(rows.held_out_pairs) == 40
    assert {pair.task for pair in rows.pairs}.isdisjoint(pair.task for pair in rows.held_out_pairs)
    assert not later.pairs and later.left_out["used by an earlier improvement"] == 40


def test_too_few_held_out_ratings_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    write_rated_store(tmp_path, 24)
    error, fix = failure(hermes(tmp_path, "improve", "--eval-share", "0.1"), 2)
    assert "can never show" in error and "--error-rate" in fix
    empty = tmp_path / "empty"
    Writer(empty / "hermes.db").close()
    error, _ = failure(hermes(empty, "improve"), 2)
    assert "no new ratings" in error
