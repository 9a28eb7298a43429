"""Rating over HTTP: what is recorded, that it is recorded once, and what it yields."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlencode

import pytest

from hermes.config.paths import db_path
from hermes.core import Rating
from hermes.store import Reader
from tests.ports import free_port
from tests.web.killed_server import KilledServer
from tests.web.samples import fill
from tests.web.site import Reply, WebSite, open_site

SCRIPT = {"x-requested-with": "fetch", "accept": "application/json"}


@pytest.fixture
def rated_site(tmp_path: Path) -> Iterator[WebSite]:
    fill(tmp_path, 16)
    with open_site(tmp_path) as running:
        yield running


def ratings(home: Path, everything: bool = False) -> list[Rating]:
    with Reader(db_path(home)) as reader:
        return [rating for rating in reader.all_ratings(everything=everything) if rating.rater != "ana"]


def item_of(text: str) -> dict[str, str]:
    match = re.search(
        r'data-item="([^"]+)" data-trajectory="([^"]+)" data-other="([^"]*)" data-steps="([^"]*)"', text
    )
    assert match, text[:500]
    return dict(zip(("item", "trajectory", "other", "steps"), match.groups(), strict=True))


def event(number: int, **fields: str) -> dict[str, str]:
    return {"id": f"event-{number:012d}", "mode": "thumb", "decision": "good", **fields}


def test_a_decision_that_is_sent_twice_is_one_rating(rated_site: WebSite) -> None:
    item = item_of(rated_site.get("/rate").text)
    form = event(1, trajectory=item["trajectory"], comment="well done", elapsed_ms="1500")
    replies = [rated_site.post("/rate", form, SCRIPT) for _ in range(3)]
    assert [json.loads(reply.text) for reply in replies] == [{"saved": "event-000000000001"}] * 3
    (rating,) = ratings(rated_site.home)
    assert (rating.kind, rating.value, rating.comment, rating.elapsed_ms) == (
        "thumb",
        1.0,
        "well done",
        1500.0,
    )
    changed = rated_site.post("/rate", {**form, "decision": "bad"}, SCRIPT)
    assert changed.status == 400 and "another content" in json.loads(changed.text)["error"]


def test_every_item_comes_once_and_then_there_is_none(rated_site: WebSite) -> None:
    rated: list[str] = []
    while (reply := rated_site.get("/rate/item?mode=score", SCRIPT)).status == 200:
        item = item_of(reply.text)
        rated.append(item["trajectory"])
        form = event(len(rated), mode="score", decision="4", trajectory=item["trajectory"])
        assert rated_site.post("/rate", form, SCRIPT).status == 200
    assert len(rated) == len(set(rated)) == 17
    assert "Nothing waits here" in rated_site.get("/rate?mode=score").text


def test_pairs_are_attempts_at_one_task_in_both_orders(rated_site: WebSite) -> None:
    left_is_older = set()
    for number in range(24):
        reply = rated_site.get("/rate/item?mode=pair", SCRIPT)
        if reply.status == 204:
            break
        item = item_of(reply.text)
        with Reader(db_path(rated_site.home)) as reader:
            tasks = {reader.get(item[side]).header.task_id for side in ("trajectory", "other")}
        assert len(tasks) == 1
        left_is_older.add(item["trajectory"] < item["other"])
        form = event(
            number, mode="pair", decision="much-right", trajectory=item["trajectory"], other=item["other"]
        )
        assert rated_site.post("/rate", form, SCRIPT).status == 200
    recorded = ratings(rated_site.home)
    assert len(recorded) == 24 and left_is_older == {True, False}
    assert all(rating.value == -1.0 and rating.shown_first == rating.trajectory_id for rating in recorded)
    assert len({tuple(sorted((rating.trajectory_id, str(rating.other_id)))) for rating in recorded}) == 24


def test_the_item_is_blind(rated_site: WebSite) -> None:
    for mode in ("thumb", "pair", "step"):
        text = rated_site.get(f"/rate/item?mode={mode}", SCRIPT).text
        assert "smollm2" not in text and "gpt-5" not in text and "reward" not in text and "tokens" not in text


def test_undo_takes_back_and_the_item_waits_again(rated_site: WebSite) -> None:
    item = item_of(rated_site.get("/rate?mode=step").text)
    step = item["steps"].split()[0]
    form = event(1, mode="step", decision="first-bad", trajectory=item["trajectory"], step=step)
    assert rated_site.post("/rate", form, SCRIPT).status == 200
    undo = {"id": "undo-000000000001", "event": "event-000000000001"}
    for _ in range(2):
        assert rated_site.post("/rate/undo", undo, SCRIPT).status == 200
    assert ratings(rated_site.home) == []
    assert [rating.kind for rating in ratings(rated_site.home, everything=True)] == ["first_bad", "withdraw"]
    assert rated_site.post("/rate/undo", {"id": "undo-000000000002"}, SCRIPT).status == 409


def test_without_javascript_a_button_rates_and_the_next_item_comes(rated_site: WebSite) -> None:
    page = rated_site.get("/rate?mode=score").text
    hidden = dict(
        re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.partition('id="decide"')[2])
    )
    reply = rated_site.post("/rate", {**hidden, "decision": "5", "comment": ""})
    assert reply.status == 303 and reply.headers["location"].startswith("/rate?mode=score")
    undone = rated_site.post("/rate/undo", hidden | {"id": "undo-000000000001"})
    assert undone.status == 303 and hidden["trajectory"] in undone.headers["location"]
    assert hidden["trajectory"] in rated_site.get(undone.headers["location"]).text


def test_what_the_ratings_yield_is_counted(rated_site: WebSite) -> None:
    for number in range(6):
        item = item_of(rated_site.get("/rate/item?mode=pair", SCRIPT).text)
        form = event(number, mode="pair", decision="left", trajectory=item["trajectory"], other=item["other"])
        rated_site.post("/rate", form, SCRIPT)
    text = rated_site.get("/rate/rows", SCRIPT).text
    assert "hermes improve: an improvement needs about " in text
    assert re.search(r'<dt>DPO</dt><dd class="num">6</dd>', text)
    assert "chosen" in text and "rejected" in text
    assert re.search(r">PRM</dt><dd class=\"num\">0</dd>", text)
    item = item_of(rated_site.get("/rate/item?mode=step", SCRIPT).text)
    step = item["steps"].split()[0]
    form = event(6, mode="step", decision="step-good", trajectory=item["trajectory"], step=step)
    assert rated_site.post("/rate", form, SCRIPT).status == 200
    assert re.search(r">PRM</dt><dd class=\"num\">1</dd>", rated_site.get("/rate/rows", SCRIPT).text)


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "nothing"},
        {"decision": "nothing"},
        {"trajectory": "NOTHING"},
        {"trajectory": ""},
        {"id": "short"},
        {"id": "../../../../etc/passwd"},
        {"mode": "pair", "decision": "left"},
        {"mode": "pair", "decision": "left", "other": "SAME"},
        {"mode": "step", "decision": "step-good"},
        {"mode": "step", "decision": "step-good", "step": "999"},
        {"mode": "step", "decision": "step-good", "step": "0"},
        {"mode": "step", "decision": "step-good", "step": "x"},
        {"elapsed_ms": "-1"},
        {"comment": "x" * 30_000},
    ],
)
def test_bad_ratings_are_refused_with_a_sentence(rated_site: WebSite, fields: dict[str, str]) -> None:
    trajectory = item_of(rated_site.get("/rate").text)["trajectory"]
    form = event(1, **{"trajectory": trajectory, **fields})
    form = {name: trajectory if value == "SAME" else value for name, value in form.items()}
    reply = rated_site.post("/rate", form, SCRIPT)
    assert 400 <= reply.status < 500
    assert len(json.loads(reply.text)["error"]) > 10
    assert ratings(rated_site.home) == []


def test_two_raters_do_not_get_the_same_item(rated_site: WebSite) -> None:
    cookies = [{"cookie": f"hermes_rater={name}", **SCRIPT} for name in ("ben", "cleo")]
    items: list[str] = []
    for _ in range(8):
        for cookie in cookies:
            besides = urlencode([("besides", item) for item in items])
            items.append(item_of(rated_site.get(f"/rate/item?{besides}", cookie).text)["item"])
    assert len(set(items)) == len(items)
    offered = item_of(rated_site.get("/rate/item", cookies[0]).text)["item"]
    assert offered not in items[1::2], "what the other one has on the screen is not offered"


def test_a_killed_server_loses_no_rating_that_it_confirmed_and_doubles_none(tmp_path: Path) -> None:
    """The page sends a decision until the server confirms it; the server is killed meanwhile."""
    ids = fill(tmp_path, 40)[:40]
    port = free_port()
    environ = {**os.environ, "HERMES_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "hermes", "web", "--no-open", "--port", str(port)]
    with KilledServer(command, environ) as server:
        for number, trajectory in enumerate(ids):
            body = urlencode(event(number, trajectory=trajectory)).encode()
            if number in (3, 19, 33):  # the kill falls between the request and its response, or just after it
                threading.Timer(0.0002 * number, server.kill).start()
            while not _sent(port, body):
                server.restart_if_dead()
    recorded = [rating.trajectory_id for rating in ratings(tmp_path)]
    assert sorted(recorded) == sorted(ids)
    assert server.starts == 4


def _sent(port: int, body: bytes) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"content-type": "application/x-www-form-urlencoded", **SCRIPT}
    try:
        connection.request("POST", "/rate", body, headers)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def test_a_queue_leases_repeats_and_shows_its_progress(rated_site: WebSite) -> None:
    made = rated_site.post("/rate/queues", {"name": "morning", "mode": "pair", "rule": "spread"})
    assert made.status == 303
    first = item_of(rated_site.get("/rate?queue=morning").text)
    assert item_of(rated_site.get("/rate?queue=morning").text)["item"] == first["item"]
    second = item_of(rated_site.get(f"/rate/item?queue=morning&besides={first['item']}", SCRIPT).text)
    assert second["item"] != first["item"]
    form = event(
        1, mode="pair", decision="tie", queue="morning", trajectory=first["trajectory"], other=first["other"]
    )
    assert rated_site.post("/rate", form, SCRIPT).status == 200
    (rating,) = ratings(rated_site.home)
    assert (rating.queue, rating.item) == ("morning", first["item"])
    assert re.search(r"1 of \d+</span> rated", rated_site.get("/rate?queue=morning").text)
    assert rated_site.post("/rate/queues", {"name": "", "rule": "random"}).status == 400
    assert rated_site.post("/rate/queues", {"name": "x", "rule": "nothing"}).status == 400
    assert rated_site.get("/rate?queue=nothing").status == 404


def test_programs_rate_at_the_same_server(rated_site: WebSite) -> None:
    """The routes of the rating desk, behind the access checks of the pages; both see the same events."""
    trajectory = item_of(rated_site.get("/rate").text)["trajectory"]
    draft = {"trajectory_id": trajectory, "verdict": "good", "rater": "ben", "id": "program-rating-0001"}
    assert _api(rated_site, "/api/ratings", draft).status == 200
    assert _api(rated_site, "/api/ratings", draft).status == 200
    assert [rating.rater for rating in ratings(rated_site.home)] == ["ben"], "once, however often it is sent"
    assert "by ben" in rated_site.get(f"/trajectories/{trajectory}").text
    counted = json.loads(rated_site.get(f"/api/ratings?trajectory={trajectory}").text)["ratings"]
    assert "ben" in [entry["rater"] for entry in counted]
    refused = _api(rated_site, "/api/ratings", draft | {"verdict": "nothing"})
    assert refused.status == 400 and json.loads(refused.text)["error"]
    assert _api(rated_site, "/api/ratings", draft, {"origin": "http://127.0.0.1:1"}).status == 403
    assert rated_site.get("/api/nothing").status == 404


def _api(site: WebSite, path: str, body: dict[str, str], headers: dict[str, str] | None = None) -> Reply:
    sent = {"content-type": "application/json", **(headers or {})}
    return site.send("POST", path, json.dumps(body).encode(), sent)
