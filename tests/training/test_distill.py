"""Distillation on-policy: from a teacher behind the Tinker API, and from one behind /generate."""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hermes.errors import HermesError
from hermes.training.data.batch import BatchConfig
from hermes.training.distill import GenerateTeacher, Teacher, TinkerTeacher, add_teacher_logprobs
from hermes.training.rl import train
from tests.cli.process import failure, hermes
from tests.engine.http.engine_process import Server
from tests.training.conftest import MakeRun
from tests.training.rl_runs import feeding, services, settings, trained
from tests.training.world import Environment, ask, metrics


class Taught:
    """A pupil that never sees a reward; its teacher was trained on it."""

    def __init__(self, make_run: MakeRun, environment: Environment) -> None:
        self.teacher = trained(make_run("other"), environment, steps=6)
        ask(environment.api_url, "GET", "/reset_data", text=True)
        environment.forget()
        self.run = make_run("taught")
        self._environment = environment

    def gain(self, teacher: Teacher) -> float:
        """A token's advantage is minus its divergence from the teacher: it shrinks as the pupil learns."""
        given = settings(self._environment.api_url, 8, rules=BatchConfig(distill=1.0, rewards=0.0))
        with feeding(self._environment):
            train(self.run, given, services(self.run, teacher=teacher))
        told = [row["advantages/mean"] for row in metrics(self.run.folder)]
        return statistics.fmean(told[-2:]) - told[0]


@pytest.mark.slow
def test_a_teacher_alone_can_teach(make_run: MakeRun, environment: Environment) -> None:
    taught = Taught(make_run, environment)
    assert taught.gain(TinkerTeacher(taught.run.connection, taught.teacher.sampler)) > 0.01


def test_an_adapter_of_the_same_engine_teaches_over_generate(
    make_run: MakeRun, environment: Environment, engine: Server
) -> None:
    taught = Taught(make_run, environment)
    teacher = GenerateTeacher(f"{engine.url}/generate", model=taught.teacher.sampler)
    by_tinker = TinkerTeacher(taught.run.connection, taught.teacher.sampler)
    texts = [[5, 6, 7, 300, 301], [5, 6], list(range(260, 300))]
    for found, expected in zip(teacher.score(texts), by_tinker.score(texts), strict=True):
        assert found == pytest.approx(expected, abs=1e-5)
    assert taught.gain(teacher) > 0.01


class Busy(BaseHTTPRequestHandler):
    """Refuses everybody once, and answers when as many ask at a time as the test wants."""

    together: threading.Barrier
    keys: set[str]
    seen: set[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.keys.add(self.headers["Authorization"])
        if body.decode() not in self.seen:
            self.seen.add(body.decode())
            self._answer(503, {"error": "loading"})
            return
        self.together.wait(30)
        ids = json.loads(body)["input_ids"]
        scores = [[None if not index else -float(index), token, None] for index, token in enumerate(ids)]
        self._answer(200, {"meta_info": {"input_token_logprobs": scores}})

    def _answer(self, status: int, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def test_a_teacher_is_asked_many_things_at_once_with_its_key_and_again_where_it_is_busy() -> None:
    keys: set[str] = set()
    facts = {"together": threading.Barrier(4), "keys": keys, "seen": set()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Busy,), facts))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        teacher = GenerateTeacher(f"http://127.0.0.1:{server.server_port}/v1", "secret")
        found = teacher.score([[number, 6, 7] for number in range(4)])
    finally:
        server.shutdown()
        server.server_close()
    assert found == [[0.0, -1.0, -2.0]] * 4 and keys == {"Bearer secret"}


def test_a_teacher_that_is_not_there_is_an_error_that_names_it() -> None:
    with pytest.raises(HermesError, match=r"teacher at http://127\.0\.0\.1:9 does not respond"):
        GenerateTeacher("http://127.0.0.1:9/v1", patience_s=0.2).score([[1, 2, 3]])


def test_a_teacher_that_refuses_is_not_asked_again(engine: Server) -> None:
    with pytest.raises(HermesError, match=r"returned 404: .*'nobody' does not exist"):
        GenerateTeacher(engine.url, model="nobody").score([[1, 2, 3]])


def test_the_policy_is_not_its_own_teacher(tmp_path: Path) -> None:
    words = ("train", "grpo", "--base-url", "http://127.0.0.1:9", "--distill", "1")
    what, fix = failure(hermes(tmp_path, *words, "--teacher-url", "http://127.0.0.1:9/generate"), 2)
    assert what.startswith("the teacher would be the policy itself") and "--teacher-model" in fix
    what, fix = failure(hermes(tmp_path, *words[:-2], "--teacher-url", "http://127.0.0.1:8"), 2)
    assert what == "--teacher-url is set, but --distill is 0" and "--distill" in fix


def test_groups_that_bring_the_teachers_word_keep_it_and_the_others_get_it_in_their_order() -> None:
    class Numbers:
        def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
            return [[float(-token) for token in tokens] for tokens in sequences]

    brought = {"tokens": [[1, 2]], "distill_token_ids": [[[1], [2]]], "distill_logprobs": [[[0.0], [-0.5]]]}
    silent = [{"tokens": [[3, 4], [5]]}, {"tokens": [[6, 7]]}]
    found = add_teacher_logprobs(Numbers(), [silent[0], brought, silent[1]])
    assert found[1] is brought
    assert found[0]["distill_logprobs"] == [[[-3.0], [-4.0]], [[0.0]]]
    assert found[0]["distill_token_ids"] == [[[3], [4]], [[5]]]
    assert found[2]["distill_logprobs"] == [[[-6.0], [-7.0]]]
