"""`hermes improve --text` against a provider on loopback: found, gated, promoted, used, resumed, refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes.core import Message, Rating, RatingKind, new_id
from hermes.policies.text.rated import rated_tasks
from hermes.store import Filter, Reader, Writer
from hermes.training.policy_registry import PolicyRegistry
from tests import records
from tests.cli.process import failure, hermes
from tests.fakes.provider import FakeProvider, Reply, status, text
from tests.policies.text_world import PLANTED, WORDS, configured, reward_file, tasks_file, world
from tests.waiting import wait_until

SEED = 7


def arguments(folder: Path, *more: str) -> tuple[str, ...]:
    return (
        *("improve", "--text", "system_prompt", "--tasks", str(tasks_file(folder))),
        *("--reflect-with", "fake/reflector", "--toolsets", "none", "--seed", str(SEED), *more),
    )


def improved(home: Path, *words: str) -> dict[str, Any]:
    done = hermes(home, *words, "--json", timeout_s=120)
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def test_a_planted_instruction_is_found_promoted_and_used(tmp_path: Path) -> None:
    with FakeProvider(world(SEED)) as provider:
        home = configured(tmp_path / "home", provider)
        facts = improved(home, *arguments(tmp_path))
        assert facts["promoted"] is True, facts
        assert facts["figures"]["losses"] == 0 and facts["figures"]["cost_usd"] > 0
        record = PolicyRegistry(home).current("fake/worker")
        assert record.base_model == "fake/worker" and record.weights is None and record.method == "text"
        assert record.texts["system_prompt"] == PLANTED
        page = Path(str(facts["report"])).read_text()
        assert "Promoted" in page and f"+{PLANTED}" in page and "held out" in page
        show = hermes(home, "policy", "show").stdout
        assert PLANTED in show and "fake/worker" in show

        question = ("-q", "Write the word copper.", "--toolsets", "none", "--json")
        assert json.loads(hermes(home, *question).stdout)["answer"] == "The word is copper."
        reply = json.loads(hermes(home, "--model", "policy", *question).stdout)
        assert reply["answer"] == "COPPER" and reply["model"] == "fake/worker"
        own = ("--model", "policy", "--system", "Say it plainly.", *question)
        assert (
            json.loads(hermes(home, *own).stdout)["answer"] == "The word is copper."
        )  # the person's word wins
        batch = hermes(
            *(home, "batch", "--dataset-file", str(tasks_file(tmp_path, 3)), "--run-name", "b"),
            *("--model", "policy", "--output-dir", str(tmp_path / "out"), "--toolsets", "none"),
        )
        assert "mean reward 1.000" in batch.stdout, batch.stdout + batch.stderr

        assert "base" in hermes(home, "policy", "promote", "previous").stdout
    with Reader(home / "hermes.db") as reader:
        shown = reader.header(reply["trajectory_id"])
        hashes = [entry.header.config.get("texts") for entry in reader.trajectories(Filter(run_id="b"))]
    expected = facts_hash(home)
    assert shown.config["texts"] == expected and hashes == [expected] * 3


def facts_hash(home: Path) -> dict[str, str]:
    from hermes.core.texts import hashes

    return hashes(PolicyRegistry(home).policies()[-1].texts)


def test_useless_proposals_change_nothing(tmp_path: Path) -> None:
    with FakeProvider(world(SEED, good_share=0)) as provider:
        home = configured(tmp_path / "home", provider)
        done = hermes(home, *arguments(tmp_path, "--max-calls", "120"), timeout_s=120)
        assert done.returncode == 2
        assert "scored 0" in done.stderr and "reward function" in done.stderr  # no text scored differently
        assert PolicyRegistry(home).policies() == []


def test_a_signal_that_never_varies_is_named_after_a_few_rollouts(tmp_path: Path) -> None:
    constant = tmp_path / "constant.py"
    constant.write_text("def score(ctx):\n    return 0.5\n")
    with FakeProvider(world(SEED)) as provider:
        home = configured(tmp_path / "home", provider)
        done = hermes(home, *arguments(tmp_path, "--reward", f"{constant}:score", "--concurrency", "4"))
        assert done.returncode == 2 and "the first 8 rollouts all scored 0.5" in done.stdout
        assert "rollouts scored 0.5: the signal tells no text from another" in done.stderr
        models = [request.json["model"] for request in provider.posts]
        assert models.count("reflector") == 1 and models.count("worker") <= 32  # the probe, and no proposal


def judged_world() -> Callable[[dict[str, Any]], Reply]:
    """The same world with a judge who likes capital letters."""
    play = world(SEED)

    def reply(request: dict[str, Any]) -> Reply:
        if request["model"] != "judge":
            return play(request)
        system, question = (message["content"] for message in request["messages"])
        key = re.search(r"score_\w+", system)
        assert key is not None
        answer = question.partition('"answer"')[2]
        return text(json.dumps({key[0]: 5 if re.search(r"[A-Z]{4}", answer) else 1, "reason": "r"}))

    return reply


def without_tasks(folder: Path) -> tuple[str, ...]:
    words = arguments(folder, "--judge", "fake/judge")
    at = words.index("--tasks")
    return (*words[:at], *words[at + 2 :])


def test_the_questions_of_rated_answers_are_tasks_for_a_judge(tmp_path: Path) -> None:
    with FakeProvider(judged_world()) as provider:
        home = configured(tmp_path / "home", provider)
        with Writer(home / "hermes.db") as writer:
            for word in WORDS[:80]:
                messages = [Message.user(f"Write the word {word}."), Message.assistant(word.upper())]
                rated = records.record(writer, messages, tools=())
                writer.add_rating(Rating(new_id(), rated, RatingKind.THUMB, 1.0, "ann", 1000))
        facts = improved(home, *without_tasks(tmp_path))
        assert facts["promoted"] is True, facts
        assert facts["figures"]["signal"] == "judge:fake/judge (ratings by a model) on 80 tasks"
        shown = [request.json["messages"][0]["content"] for request in provider.posts[1:]]
        assert any("Expected: " in prompt and "An agent works on tasks" in prompt for prompt in shown)


def test_what_people_think_now_makes_an_answer_liked(tmp_path: Path) -> None:
    with Writer(tmp_path / "hermes.db") as writer:

        def answered(question: str, answer: str, *ratings: tuple[RatingKind, float, str]) -> str:
            messages = [Message.user(question), Message.assistant(answer)]
            answered_id = records.record(writer, messages, tools=())
            for at_ms, (kind, value, rater) in enumerate(ratings, start=1000):
                writer.add_rating(Rating(new_id(), answered_id, kind, value, rater, at_ms))
            return answered_id

        up, down = (RatingKind.THUMB, 1.0, "ann"), (RatingKind.THUMB, -1.0, "ann")
        answered("liked", "a", up)
        answered("changed her mind", "b", (RatingKind.SCORE, 5.0, "ann"), down)
        answered("contradicted", "c", up, (RatingKind.THUMB, -1.0, "bob"))
        better, worse = answered("chosen", "d"), answered("chosen", "e")
        writer.add_rating(Rating(new_id(), worse, RatingKind.PAIR, -1.0, "ann", 1001, other_id=better))
        best_of_bad, bad = answered("chosen, but bad", "f", down), answered("chosen, but bad", "g")
        writer.add_rating(Rating(new_id(), best_of_bad, RatingKind.PAIR, 1.0, "bob", 1001, other_id=bad))
    with Reader(tmp_path / "hermes.db") as reader:
        liked = {row.prompts[0]: row.expected for row in rated_tasks(reader).rows}
    assert liked == {
        "liked": "a",
        "changed her mind": None,
        "contradicted": None,
        "chosen": "d",
        "chosen, but bad": None,
    }


def test_without_ratings_there_are_no_tasks(tmp_path: Path) -> None:
    with FakeProvider([text("unused")]) as provider:
        home = configured(tmp_path / "home", provider)
        error, fix = failure(hermes(home, *without_tasks(tmp_path)), 2)
        assert "no answer to a single question is rated" in error and "--tasks" in fix
        assert provider.posts == []


def test_ratings_by_a_model_are_marked(tmp_path: Path) -> None:
    with FakeProvider(judged_world()) as provider:
        home = configured(tmp_path / "home", provider)
        facts = improved(home, *arguments(tmp_path, "--judge", "fake/judge"))
        assert facts["promoted"] is True, facts
    assert facts["figures"]["signal"].startswith("judge:fake/judge (ratings by a model) on")
    assert "judge:fake/judge (ratings by a model)" in Path(str(facts["report"])).read_text()
    with Reader(home / "hermes.db") as reader:
        entry = next(iter(reader.trajectories(Filter())))
        assert [reward.source for reward in reader.rewards(entry.header.id)] == ["judge:fake/judge"]


def test_killed_it_goes_on_and_pays_nothing_twice(tmp_path: Path) -> None:
    """kill -9 in the middle: what the second start asks is what the first had not."""
    alone = tmp_path / "alone"
    alone.mkdir()
    with FakeProvider(world(SEED)) as provider:
        whole = improved(configured(alone / "home", provider), *arguments(alone))
        needed = len(provider.posts)
    with FakeProvider(world(SEED)) as provider:
        home = configured(tmp_path / "home", provider)
        words = arguments(tmp_path)
        environ = {**os.environ, "HERMES_HOME": str(home)}
        with subprocess.Popen([sys.executable, "-m", "hermes", *words], env=environ) as process:
            wait_until(lambda: len(provider.posts) > needed // 2)
            process.send_signal(signal.SIGKILL)
        facts = improved(home, *words)
        in_flight = 8
        assert len(provider.posts) <= needed + in_flight
        asked = [request.json["messages"][-1]["content"] for request in provider.posts]
        assert asked.count("Reply with the word OK.") == 1
    assert facts["promoted"] is whole["promoted"] is True
    assert facts["figures"] == whole["figures"]  # the same search, to the last call


@pytest.mark.parametrize(
    ("changed", "said", "to_do"),
    [
        (("--text", "system_promt"), "no text 'system_promt'", "system_prompt"),
        (("--text", "tool:termnal"), "termnal", "terminal"),
        (("--text", "skill:nothing-like-it"), "no skill 'nothing-like-it'", "skills browse"),
        (("--text", "file:../secret"), "not a path inside", "file:AGENTS.md"),
        (("--env", "calculator"), "needs tasks", "one of the two"),
        (("--eval-share", "0.01"), "can never show", "--eval-share"),
        (("--reflect-with", "nowhere/model"), "nowhere", ""),
        (("--reward", "missing.py:score"), "no file", "file.py:function"),
        (("--watch",), "--watch waits", "leave one"),
        (
            ("--then", "dpo"),
            "--then trains hermes/smollm2, and the texts are those of fake/worker",
            "leave --then",
        ),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_spent(
    tmp_path: Path, changed: tuple[str, ...], said: str, to_do: str
) -> None:
    with FakeProvider([text("unused")]) as provider:
        home = configured(tmp_path / "home", provider)
        done = hermes(home, *arguments(tmp_path, *changed))
        error, fix = failure(done, 2)
        assert said in error and to_do in fix, (error, fix)
        assert provider.posts == []


def test_a_budget_of_zero_is_refused(tmp_path: Path) -> None:
    done = hermes(tmp_path, *arguments(tmp_path, "--max-calls", "0"))
    assert done.returncode == 2 and "'--max-calls': 0 is not in the range" in done.stderr


def test_a_reflecting_model_that_refuses_ends_it_before_a_rollout(tmp_path: Path) -> None:
    with FakeProvider(lambda request: status(403, message="not for you")) as provider:
        home = configured(tmp_path / "home", provider)
        error, _ = failure(hermes(home, *arguments(tmp_path)), 1)
        assert "not for you" in error
        assert {request.json["model"] for request in provider.posts} == {"reflector"}


def test_a_price_that_is_unknown_cannot_keep_a_limit(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "providers:\n  fake:\n    base_url: https://models.invalid/v1\nmodel: fake/worker\n"
    )
    error, fix = failure(hermes(tmp_path, *arguments(tmp_path, "--max-cost", "1")), 2)
    assert "price of fake/worker is unknown" in error and "prices:" in fix


def test_proposals_of_people_need_no_reflecting_model(tmp_path: Path) -> None:
    proposals = tmp_path / "proposals.txt"
    proposals.write_text(f"Be brief.\n\n{PLANTED}\n\nBe polite.\n")
    with FakeProvider(world(SEED)) as provider:
        home = configured(tmp_path / "home", provider)
        words = list(arguments(tmp_path, "--reward", reward_file(tmp_path)))
        at = words.index("--reflect-with")
        words[at : at + 2] = ["--proposals", str(proposals)]
        facts = improved(home, *words)
        assert facts["promoted"] is True
        assert {request.json["model"] for request in provider.posts} == {"worker"}
