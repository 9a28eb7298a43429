"""From ratings to a promotion, with a real engine and a tiny model: real ratings promote, random ones not."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes.core import Message
from hermes.data.preference.pairs import PreferencePair, PreferenceSource
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
    ratings_needed,
    split_watched,
)
from hermes.policies.scoring import ComparisonGain
from hermes.policies.sequential import run_test
from hermes.serving.fetch import fetch_json
from hermes.store import Filter, Reader, Writer
from hermes.training.policy_registry import PolicyRecord, PolicyRegistry
from tests.cli.process import failure, hermes
from tests.cli.terminal import hermes_terminal
from tests.engine.http.engine_process import launch
from tests.policies.rated_store import write_rated_store
from tests.policies.text_world import tasks_file
from tests.policies.tiny_chat import make_tiny_chat
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_chat(tmp_path_factory.mktemp("models") / "tiny")


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
    error, fix = failure(hermes(tmp_path, "improve", "--base-model", str(tiny), "--device", "cpu"), 2)
    assert "no new ratings" in error and "rate" in fix
    check_the_name_policy(tmp_path, tiny, record)
    assert "base" in hermes(tmp_path, "policy", "rollback").stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_texts_and_then_weights_are_improved_and_the_report_says_what_each_brought(
    tmp_path: Path, tiny: Path
) -> None:
    write_rated_store(tmp_path, 64)
    registry = PolicyRegistry(tmp_path)
    registry.add(PolicyRecord("START", str(tiny), None, None))
    registry.promote("START", "by hand")
    (tmp_path / "config.yaml").write_text("sampling: {max_tokens: 4}\n")
    proposals, score = tmp_path / "proposals.txt", tmp_path / "score.py"
    proposals.write_text("Speak like a sailor.\n")
    score.write_text("def score(ctx):\n    return float('sailor' in ctx.trajectory.messages[0].content)\n")
    words = ("--text", "system_prompt", "--proposals", str(proposals), "--reward", f"{score}:score")
    tasks = ("--tasks", str(tasks_file(tmp_path, 45)), "--toolsets", "none", "--max-calls", "60")
    facts = run_improve(tmp_path, tiny, *words, *tasks, "--then", "dpo", "--examples", "0")
    texts, weights = registry.policies()[1:]
    assert facts["texts"] == {"policy": texts.id, "promoted": True} and facts["policy"] == weights.id
    assert weights.parent == texts.id and weights.texts == {"system_prompt": "Speak like a sailor."}
    page = Path(str(facts["report"])).read_text()
    assert "## What each brought" in page
    wins = texts.facts["wins"]
    assert f"| texts | {texts.label} | better | {wins} | 0 | 0 |" in page
    assert f"| weights (dpo) | {weights.label} | {weights.decision} |" in page


def check_the_name_policy(home: Path, tiny: Path, record: dict[str, Any]) -> None:
    """Chat, `policy serve`, batch, and training by the name of the promoted policy."""
    question = ("--model", "policy", "-q", "2 x 3?", "--toolsets", "none", "--json")
    reply = json.loads(hermes(home, *question, timeout_s=200).stdout)
    assert reply["model"] == record["name"]
    assert reply["usage"]["output_tokens"] > 0, reply  # what a tiny model says need not end
    prompts = home / "prompts.jsonl"
    prompts.write_text('{"prompt": "2 x 3?"}\n')
    command = [sys.executable, "-m", "hermes", "policy", "serve"]
    environ = {**os.environ, "HERMES_HOME": str(home)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
            assert url is not None
            wait_until(lambda: fetch_json(f"{url[0]}/health") is not None)
            arguments = ("batch", "--dataset-file", str(prompts), "--run-name", "p", "--model", "policy")
            arguments += ("--output-dir", str(home / "data"), "--max-turns", "1", "--toolsets", "none")
            batch = hermes(home, *arguments, timeout_s=200)
            assert batch.returncode == 0, batch.stderr
            rows_file = home / "sft.jsonl"
            turns = [{"role": "user", "content": "2 x 3?"}, {"role": "assistant", "content": "6, gladly."}]
            rows_file.write_text(json.dumps({"messages": turns}) + "\n")
            trained = hermes(
                *(home, "train", "sft", str(rows_file), "--start", "policy", "--base-model", str(tiny)),
                *("--service", url[0], "--name", "again", "--max-steps", "1", "--json"),
                timeout_s=200,
            )
            assert trained.returncode == 0, trained.stderr
        finally:
            server.kill()
    with Reader(home / "hermes.db") as reader:
        (batched,) = reader.trajectories(Filter(run_id="p"))
    assert batched.header.model == record["name"]
    state = json.loads((home / "runs" / "again" / "training.json").read_text())
    assert state["settings"]["start"] == record["weights"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_coin_tosses_that_two_runs_repeat_promote_nothing(tmp_path: Path, tiny: Path) -> None:
    """Learned by heart in one run, they would be right about the other: the same question is on one side."""
    server = launch(tiny, tmp_path / "engine", "--max-adapters", "64")
    try:
        for seed in range(20):
            home = tmp_path / str(seed)
            write_rated_store(home, 64, seed=seed, random_ratings=True, runs=("r", "s"))
            arguments = ("--examples", "0", "--service", server.url, "--seed", str(seed))
            result = run_improve(home, tiny, *arguments)
            assert result["promoted"] is False, (seed, result)
            assert json.loads(hermes(home, "policy", "list", "--json").stdout)["current"] == "base"
    finally:
        server.kill()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_ratings_keep_the_old_policy_in_twenty_of_twenty_seeds(tmp_path: Path, tiny: Path) -> None:
    """The whole command each time, with training on the ratings; real ones promote with the same engine."""
    server = launch(tiny, tmp_path / "engine", "--max-adapters", "64")
    try:
        for seed in range(20):
            home = tmp_path / str(seed)
            write_rated_store(home, 64, seed=seed, random_ratings=True)
            arguments = ("--examples", "0", "--service", server.url, "--seed", str(seed))
            result = run_improve(home, tiny, *arguments)
            assert result["promoted"] is False, (seed, result)
            assert "Kept the old policy" in Path(str(result["report"])).read_text()
        assert json.loads(hermes(home, "policy", "list", "--json").stdout)["current"] == "base"
        for seed in range(3):
            home = tmp_path / f"real-{seed}"
            write_rated_store(home, 64, seed=seed)
            arguments = ("--examples", "0", "--service", server.url, "--seed", str(seed))
            assert run_improve(home, tiny, *arguments)["promoted"] is True, seed
    finally:
        server.kill()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("method", ["kto", "rlhf"])
def test_the_other_methods_end_with_a_decision_too(tmp_path: Path, tiny: Path, method: str) -> None:
    """Real ratings again. KTO learns them; a few steps of RLHF with a tiny model need not."""
    write_rated_store(tmp_path, 64)
    steps = ("--max-steps", "2", "--batch-size", "2") if method == "rlhf" else ()
    result = run_improve(tmp_path, tiny, "--method", method, "--examples", "0", *steps)
    record = json.loads(hermes(tmp_path, "policy", "show", str(result["policy"]), "--json").stdout)
    assert record["method"] == method and record["decision"] == result["decision"]
    assert result["promoted"] is (result["decision"] == "better")
    folder = Path(str(result["report"])).parent
    if method == "kto":
        assert result["promoted"] is True, result
        return
    trained, watched = (
        {row["prompt"][0]["content"] for row in map(json.loads, (folder / name).read_text().splitlines())}
        for name in ("pairs.jsonl", "pairs-watched.jsonl")
    )
    assert trained and watched and not trained & watched


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_watching_improves_once_there_are_enough_ratings(tmp_path: Path, tiny: Path) -> None:
    write_rated_store(tmp_path, 64)
    command = [
        *(sys.executable, "-m", "hermes", "improve", "--watch", "--min-new", "100", "--examples", "0"),
        *("--base-model", str(tiny), "--device", "cpu", "--rank", "8", "--max-tokens", "200"),
        *("--epochs", "6", "--learning-rate", "0.01"),
    ]
    environ = {**os.environ, "HERMES_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout is not None
            lines = []
            while not lines or not lines[-1].startswith("0 of 100 new ratings; waiting for more"):
                lines.append(watcher.stdout.readline())
                assert lines[-1], lines
        finally:
            watcher.send_signal(signal.SIGINT)
        assert watcher.wait(60) == 130
    assert any(line.startswith("Promoted") for line in lines), lines
    (policy,) = PolicyRegistry(tmp_path).policies()
    assert PolicyRegistry(tmp_path).current(str(tiny)).id == policy.id


def test_watching_waits_for_ratings_and_says_what_is_missing(tmp_path: Path) -> None:
    """Real processes: one watches, another one rates. Too few ratings train nothing, and it goes on."""
    write_rated_store(tmp_path, 1)
    command = [sys.executable, "-m", "hermes", "improve", "--watch", "--min-new", "4"]
    environ = {**os.environ, "HERMES_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as watcher:
        try:
            assert watcher.stdout is not None
            assert watcher.stdout.readline().startswith("2 of 4 new ratings; waiting for more")
            write_rated_store(tmp_path, 2, seed=1)
            line = watcher.stdout.readline()
            assert "there is too little to learn from" in line and "more bad answers, or" in line
            assert re.match(r"\d of \d+ new ratings; waiting for more", watcher.stdout.readline())
        finally:
            watcher.kill()
    assert not PolicyRegistry(tmp_path).policies()


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


def test_what_was_learned_by_heart_in_one_run_decides_nothing_about_another(tmp_path: Path) -> None:
    """The decision on the real split of two runs of the same questions: a candidate that has every trained
    coin toss by heart, and tosses a coin itself elsewhere. With a split by run and task it would win."""
    promoted = 0
    for seed in range(10):  # always the same: the test may promote a coin in 5 of 100
        home = tmp_path / str(seed)
        home.mkdir()
        write_rated_store(home, 48, seed=seed, random_ratings=True, runs=("r", "s"))
        with Reader(home / "hermes.db") as reader:
            rows = gather_rows(reader, 0, 0.3)
        draw = random.Random(seed)
        assert not should_promote(run_test(_recited(draw, rows.pairs, rows.held_out_pairs)), None), seed
        pairs = [*rows.pairs, *rows.held_out_pairs]
        held_out = set(draw.sample(range(len(pairs)), k=len(pairs) // 3))
        sides = ([p for i, p in enumerate(pairs) if (i in held_out) is side] for side in (False, True))
        promoted += should_promote(run_test(_recited(draw, *sides)), None)
    assert promoted >= 8, "a split by run and task would have promoted most of them"


def _recited(
    draw: random.Random, trained: list[PreferencePair], held_out: list[PreferencePair]
) -> list[float]:
    """Wins (1) and losses (0) of one who learned the trained pairs by heart, one for each held-out task."""
    chosen = {(pair.prompt, pair.chosen) for pair in trained}
    rejected = {(pair.prompt, pair.rejected) for pair in trained}
    results = []
    for comparison in held_out_comparisons(ImprovementRows(held_out_pairs=held_out), Method.DPO):
        better = (comparison.better.prompt, comparison.better.completion)
        if (better in chosen) != (better in rejected):
            results.append(float(better in chosen))
        else:
            results.append(float(draw.random() < 0.5))
    return results


def test_a_candidate_that_is_worse_on_tasks_is_not_promoted() -> None:
    better, worse = run_test([1.0] * 30), run_test([0.0] * 30)
    assert should_promote(better, None)
    assert should_promote(better, run_test([1.0, 0.0]))
    assert not should_promote(better, worse)


def span(number: int, desirable: bool | None, task: str | None = None) -> RatedSpan:
    score = 3.0 if desirable is None else 5.0 if desirable else 1.0
    messages = (Message.user("q"),), (Message.assistant("a"),)
    return RatedSpan(*messages, score, desirable, f"T{number:03}", None, task or str(number))


def pair(number: int) -> PreferencePair:
    question, good, bad = Message.user(f"q{number}"), Message.assistant("a"), Message.assistant("b")
    ids = (f"T{number:03}", f"U{number:03}")
    return PreferencePair((question,), (good,), (bad,), *ids, 1, PreferenceSource.RATING, 4.0, str(number))


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
    with pytest.raises(UsageError, match="too little to learn from: 0 pairs"):
        choose_method(ImprovementRows(held_out_spans=[span(0, True)]))


def test_as_many_ratings_as_are_said_to_be_missing_are_enough(tmp_path: Path) -> None:
    """Nearly: tasks are held out by their hash, and so a little more or less than the share of them."""
    write_rated_store(tmp_path, 20)
    with Reader(tmp_path / "hermes.db") as reader:
        needed = ratings_needed(gather_rows(reader, 0, 0.3), 11, 0.3)
    assert needed.pairs and not needed.enough
    write_rated_store(tmp_path, 20 + needed.pairs, seed=1)
    with Reader(tmp_path / "hermes.db") as reader:
        rows = gather_rows(reader, 0, 0.3)
    now = ratings_needed(rows, 11, 0.3)
    assert now.enough and str(now) == "enough to improve"
    assert choose_method(rows, needed=now)[0] is Method.DPO


def test_single_verdicts_decide_where_too_few_pairs_are_held_out() -> None:
    rows = ImprovementRows(
        pairs=[pair(number) for number in range(20)],
        spans=[span(number, number % 2 == 0) for number in range(40)],
        held_out_spans=[span(number, number % 2 == 0) for number in range(22)],
    )
    assert choose_method(rows)[0] is Method.DPO
    assert choose_method(rows, needed=ratings_needed(rows, 11, 0.3))[0] is Method.KTO


def test_another_models_answers_are_learned_from_only_if_that_is_meant(tmp_path: Path) -> None:
    write_rated_store(tmp_path, 64)
    error, fix = failure(hermes(tmp_path, "improve"), 2)
    assert "hermes/smollm2 learns from rated answers of test/model (" in error
    assert "--base-model hermes/smollm2 if that is meant" in fix
    with hermes_terminal(tmp_path, "improve") as terminal:
        terminal.expect(r"which is another model. Train it\? \[y/N\]: ")
        terminal.line("n")
        assert terminal.wait() == 2
    assert not PolicyRegistry(tmp_path).policies()


def test_held_out_comparisons_share_no_task(tmp_path: Path) -> None:
    spans = [span(number, number % 3 > 0, task=str(number // 2)) for number in range(60)]
    comparisons = held_out_comparisons(ImprovementRows(held_out_spans=spans), Method.KTO)
    tasks = [task for comparison in comparisons for task in comparison.task.split(" | ")]
    assert len(tasks) == len(set(tasks)) and comparisons
    both = [span(number, number % 2 == 0, task=str(number // 2)) for number in range(60)]
    comparisons = held_out_comparisons(ImprovementRows(held_out_spans=both), Method.KTO)
    assert len(comparisons) == 30, "a task with a good and a bad answer is a comparison by itself"
    write_rated_store(tmp_path, 40)
    with Reader(tmp_path / "hermes.db") as reader:
        rows = gather_rows(reader, 0, 0.3)
        later = gather_rows(reader, 1039, 0.3)
    assert len(rows.pairs) + len(rows.held_out_pairs) == 40
    assert {pair.task for pair in rows.pairs}.isdisjoint(pair.task for pair in rows.held_out_pairs)
    assert not later.pairs and later.left_out["used by an earlier improvement"] == 40


def test_what_rlhf_is_stopped_by_is_neither_trained_on_nor_held_out_for_the_decision(tmp_path: Path) -> None:
    write_rated_store(tmp_path, 80)
    with Reader(tmp_path / "hermes.db") as reader:
        rows = gather_rows(reader, 0, 0.3)
    trained, watched = split_watched(rows.pairs, 0.3)
    sides = [{pair.task for pair in side} for side in (trained, watched, rows.held_out_pairs)]
    assert all(sides) and sum(map(len, sides)) == len(set().union(*sides)) == 80
    assert len(trained) > 4 * len(watched)
    (alone,) = split_watched(trained[:1], 0.3)[1]
    assert alone is trained[0], "there is always something to stop by"


def test_too_few_held_out_ratings_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    write_rated_store(tmp_path, 24)
    error, fix = failure(hermes(tmp_path, "improve", "--eval-share", "0.1"), 2)
    assert "can never show" in error and "--error-rate" in fix
    needed = re.search(r"about (\d+) more good and (\d+) more bad answers, or (\d+) more pairs", fix)
    assert needed and "/retry" in fix
    few = tmp_path / "few"
    write_rated_store(few, 8)
    stats = hermes(few, "rate", "stats").stdout
    assert re.search(r"hermes improve: an improvement needs about \d+ more good", stats), stats
    assert json.loads(hermes(few, "rate", "stats", "--json").stdout)["needed"]["pairs"] > 8
    empty = tmp_path / "empty"
    Writer(empty / "hermes.db").close()
    error, _ = failure(hermes(empty, "improve"), 2)
    assert "no new ratings" in error
