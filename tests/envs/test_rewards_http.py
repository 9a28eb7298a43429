"""Rewards that ask a server: a status, and a reward model, over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from hermes.envs.rewards.http import RewardModel, http_status
from hermes.envs.rewards.result import GraderError
from tests.fakes.site import Page, Request, Site, page, redirect


async def test_the_expected_status_is_right_and_any_other_wrong() -> None:
    with Site({"/": page("hi"), "/old": redirect("/")}) as site:
        assert (await http_status(site.url("/"))).value == 1.0
        assert (await http_status(site.url("/missing"))).value == 0.0
        assert (await http_status(site.url("/missing"), 404)).value == 1.0
        assert (await http_status(site.url("/old"))).value == 0.0, "a redirect is not followed"
        assert (await http_status(site.url("/old"), 302)).value == 1.0


async def test_a_server_that_is_not_there_is_the_policys_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = await http_status(f"http://127.0.0.1:{unused.getsockname()[1]}/")
    assert result.value == 0.0
    assert "nothing listens" in result.detail


@pytest.fixture
def talker() -> Iterator[socket.socket]:
    """Accepts one connection and leaves it to the test what to say."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


async def test_a_server_that_speaks_no_http_is_the_policys_failure(talker: socket.socket) -> None:
    def speak() -> None:
        connection, _ = talker.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"220 this is a mail server\r\n")

    thread = threading.Thread(target=speak)
    thread.start()
    result = await http_status(f"http://127.0.0.1:{talker.getsockname()[1]}/")
    thread.join()
    assert result.value == 0.0


async def test_a_server_that_never_answers_is_the_graders_failure(talker: socket.socket) -> None:
    with pytest.raises(GraderError, match="Timeout"):
        await http_status(f"http://127.0.0.1:{talker.getsockname()[1]}/", timeout_s=0.3)


async def test_an_address_that_is_none_is_the_graders_failure() -> None:
    for address in ("http://no-such-host.invalid/", "ftp://127.0.0.1/", "http://[bad"):
        with pytest.raises(GraderError, match="the request to"):
            await http_status(address)


def scoring(reply: object, status: int = 200) -> Site:
    return Site({"/pooling": Page(json.dumps(reply).encode(), "application/json", status)})


async def test_a_reward_models_score_goes_through_a_sigmoid() -> None:
    def score(request: Request) -> Page:
        said = json.loads(request.body)["messages"][1]["content"]
        return Page(json.dumps({"data": [{"data": [float(len(said))]}]}).encode(), "application/json")

    with Site({"/pooling": score}) as site:
        model = RewardModel(site.url(""), "reward")
        one = await model.grade([{"role": "user", "content": "?"}, {"role": "assistant", "content": ""}])
        two = await model.grade(
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": "x" * 900}]
        )
        await model.close()
    assert (one.value, one.parts["raw"], one.success) == (0.5, 0.0, False)
    assert (two.value, two.parts["raw"], two.success) == (1.0, 900.0, True)


@pytest.mark.parametrize(
    "reply",
    [{}, {"data": []}, {"data": [{"data": [1, 2]}]}, {"data": [{"data": ["1"]}]}, {"score": None}, 7.5e999],
)
async def test_a_reply_without_exactly_one_number_is_the_graders_failure(reply: object) -> None:
    with scoring(reply) as site:
        model = RewardModel(site.url(""), "reward")
        with pytest.raises(GraderError, match="no score"):
            await model.grade([])
        await model.close()


async def test_a_reward_model_that_is_down_or_refuses_is_the_graders_failure() -> None:
    with scoring({"error": "overloaded"}, 503) as site:
        model = RewardModel(site.url(""), "reward")
        with pytest.raises(GraderError, match="503"):
            await model.grade([])
    with pytest.raises(GraderError, match="failed"):
        await model.grade([])
    await model.close()
