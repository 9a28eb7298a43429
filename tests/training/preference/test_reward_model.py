"""A reward model from the command line to the score over HTTP, with a real engine."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hermes.cli.terminal.interrupted import STOPPED
from hermes.core import Message, RaterSource
from hermes.envs.rewards.http import RewardModel
from hermes.envs.rewards.result import GraderError
from hermes.ratings.desk import items_of
from hermes.ratings.settings import QueueRule, QueueSettings
from hermes.store import Reader, Writer
from hermes.training.preference.calibration import ScoredPair, reliability_svg, report_of
from tests.engine.http.engine_process import Server
from tests.records import record
from tests.training.preference.conftest import Hermes, write_pairs
from tests.training.world import Process

SMALL = ("--rank", "8", "--learning-rate", "0.01", "--batch-size", "6", "--min-rows", "4")


def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def conversation(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "q99"}, {"role": "assistant", "content": text}]}


@pytest.mark.timeout(400)
async def test_a_reward_model_is_trained_measured_and_served(
    hermes: Hermes, chat_engine: Server, chat_model: Path, tmp_path: Path
) -> None:
    pairs, held_out = write_pairs(tmp_path / "p.jsonl", 24), write_pairs(tmp_path / "h.jsonl", 12, seed=7)
    trainer = hermes(
        *("train", "reward", str(pairs), "--eval-file", str(held_out), "--base-model", str(chat_model)),
        *("--name", "liked", "--members", "2", "--epochs", "3", *SMALL, "--json"),
    )
    assert trainer.wait() == 0, trainer.output
    made = json.loads(trainer.output.splitlines()[-1])
    assert len(made["members"]) == 2 and made["members"][0] != made["members"][1]
    assert made["held_out"]["pairs"] == 12 and made["held_out"]["accuracy"] >= 0.9
    assert made["held_out"]["spread"] > 0, "two seeds do not agree to the last digit"
    folder = Path(made["run_dir"])
    assert "ECE" in (folder / "reliability.svg").read_text()
    server = hermes("reward", "serve", "liked", "--port", "0")
    url = server.until(r"http://127\S+:\d+")[0]
    # The environment's client reads it: the preferred kind of answer scores higher.
    client = RewardModel(url, "liked")
    good, bad = [await client.grade(conversation(text)["messages"]) for text in ("aaaa", "zzzz")]
    assert good.value > bad.value and good.parts["raw"] > bad.parts["raw"]
    status, both = post(f"{url}/score", {"conversations": [conversation("aaaa"), conversation("zzzz")]})
    assert status == 200
    assert both["scores"][0]["score"] == pytest.approx(good.parts["raw"], abs=1e-4)
    assert both["scores"][1]["score"] == pytest.approx(bad.parts["raw"], abs=1e-4)
    assert both["scores"][0]["spread"] > 0
    for body, problem in (
        (b"no json", "not JSON"),
        ({"messages": []}, "not a list with at least one message"),
        ({"messages": [{"role": "user", "content": "q"}]}, "does not end with an answer"),
        (conversation("a" * 4000), "tokens; the reward model reads"),
    ):
        status, refused = post(f"{url}/pooling", body)
        assert status == 400 and problem in refused["error"]
    assert post(f"{url}/pooling", conversation("a"), Origin="https://elsewhere.example")[0] == 403
    with pytest.raises(GraderError):
        await client.grade([{"role": "user", "content": "q"}])
    await client.close()
    scored = hermes("reward", "score", "liked", str(_messages_file(tmp_path)), "--json")
    assert scored.wait() == 0, scored.output
    values = [json.loads(line)["score"] for line in scored.output.splitlines() if line.startswith("{")]
    assert values == pytest.approx([good.parts["raw"], bad.parts["raw"]], abs=1e-4)
    check_that_it_rates(hermes, url, tmp_path / "home" / "hermes.db")
    check_that_it_ends_without_its_engine(server, url, chat_engine)


def check_that_it_ends_without_its_engine(server: Process, url: str, engine: Server) -> None:
    """The engine stands still, and a score waits for it; Ctrl-C twice."""
    engine.process.send_signal(signal.SIGSTOP)
    try:
        waiting = threading.Thread(target=lambda: _post_in_vain(url), daemon=True)
        waiting.start()
        waiting.join(2)
        assert waiting.is_alive(), "nobody has scored it"
        for _ in range(2):
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        server.wait(60)
        assert "stopped; " + STOPPED["reward serve"] in server.output, server.output
    finally:
        engine.process.send_signal(signal.SIGCONT)


def _post_in_vain(url: str) -> None:
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        post(f"{url}/pooling", conversation("aaaa"))


def check_that_it_rates(hermes: Hermes, url: str, db: Path) -> None:
    """`hermes rate auto` with the served model; what its members differ about can then be queued."""
    with Writer(db) as writer:
        ids = [
            record(writer, [Message.user("q"), Message.assistant(text)], tools=(), task_id="t")
            for text in ("aaaa", "zzzz")
        ]
    rater = hermes("rate", "auto", "--reward-model", url, "--json")
    assert rater.wait() == 0, rater.output
    assert json.loads(rater.output.splitlines()[-1])["rated"] == 2
    with Reader(db) as reader:
        scores = {rating.trajectory_id: rating for rating in reader.all_ratings()}
        items = items_of(reader, QueueSettings(QueueRule.UNCERTAINTY))
    assert {rating.source for rating in scores.values()} == {RaterSource.REWARD_MODEL}
    assert scores[ids[0]].value > scores[ids[1]].value
    assert {item.trajectory_id for item in items} == set(ids)


def _messages_file(folder: Path) -> Path:
    file = folder / "conversations.jsonl"
    file.write_text("".join(json.dumps(conversation(text)) + "\n" for text in ("aaaa", "zzzz")))
    return file


@pytest.mark.slow
def test_ratings_of_single_answers_train_a_reward_model_too(
    hermes: Hermes, chat_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rated.jsonl"
    rows = [
        {
            "prompt": f"q{number}",
            "completion": "aaaa" if number % 2 else "zzzz",
            "rating": 5 if number % 2 else 1,
        }
        for number in range(20)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer = hermes(
        *("train", "reward", str(file), "--loss", "pointwise", "--base-model", str(chat_model)),
        *("--name", "stars", "--epochs", "6", "--eval-share", "0.2", *SMALL),
    )
    assert trainer.wait() == 0, trainer.output
    home = tmp_path / "home" / "runs" / "stars" / "member-0" / "metrics.jsonl"
    errors = [json.loads(line)["rewards/error"] for line in home.read_text().splitlines()]
    assert errors[-1] < 0.2 < errors[0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("reward", "serve", "nobody"), "there is no reward model called 'nobody'"),
        (("reward", "score", "nobody", "x"), "there is no reward model called 'nobody'"),
    ],
)
def test_a_reward_model_that_is_not_there_is_named(hermes: Hermes, arguments: Any, problem: str) -> None:
    process = hermes(*arguments)
    assert process.wait() != 0 and problem in process.output and "hermes train reward" in process.output


def test_calibration_and_length_bias_come_out_as_computed_by_hand() -> None:
    # Four pairs: three right with confidence σ(2) = 0.881, one wrong with the same confidence.
    pairs = [ScoredPair(2, 0, 9, 3), ScoredPair(2, 0, 3, 9), ScoredPair(2, 0, 9, 3), ScoredPair(0, 2, 9, 3)]
    report = report_of(pairs)
    assert report.accuracy == 0.75 and report.pairs == 4
    assert report.ece == pytest.approx(0.8807970779778823 - 0.75)
    assert report.longer_chosen == 0.75
    assert report.longer_preferred == 0.5, (
        "of the pairs 1 and 3 it prefers the longer, of 2 and 4 the shorter"
    )
    assert len(report.bins) == 1 and report.bins[0].pairs == 4
    svg = reliability_svg(report, "a <b>")
    assert svg.startswith("<svg") and "a &lt;b&gt;" in svg and "75.0%" in svg


def test_a_report_of_perfect_scores_has_no_calibration_error() -> None:
    report = report_of([ScoredPair(60, 0, 5, 5)] * 3)
    assert report.accuracy == 1.0 and report.ece == pytest.approx(0.0, abs=1e-9)
    assert report.length_correlation == 0.0 and report.longer_preferred == 0.5
