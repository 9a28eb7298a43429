"""The list and the transcript, over HTTP: what the query box selects, what a page shows, what it folds."""

from __future__ import annotations

import html
import http.client
import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from hermes.config.paths import db_path
from hermes.core import Message, Relation, Step, StepKind, ToolCall, ToolResult
from hermes.data.example import load
from hermes.data.where import parse
from hermes.store import Reader, Writer
from hermes.store.browse.reader import BrowseReader
from hermes.web.query import parse_query
from tests.records import COMPLETED, header, model_call, record
from tests.web.samples import PIXEL, fill
from tests.web.site import WebSite, open_site

CONDITIONS = [
    "reward>0.3",
    "reward<=0.3",
    "rating>=4",
    "model~GPT",
    "model=openai/gpt-5-mini",
    "model!=openai/gpt-5-mini",
    "outcome=max_turns",
    "outcome!=completed",
    "source=query",
    "run=batch-1",
    "task=task-3",
    "sample>=2",
    "turns=3",
    "turns>2",
    "messages=7",
    "tool_errors>0",
    "tool_calls=2",
    "tokens>100",
    "cost_usd<1",
    "cost_usd=0.75",
    "created_at_ms>0",
    "model>3",
    "metadata.split=train",
    "metadata.split!=train",
    "session=none",
    "reward~0.5",
]


def listed(text: str) -> list[str]:
    return re.findall(r'<td class="task"[^>]*><a href="/trajectories/([0-9A-Z]{26})', text)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_query_box_means_what_where_means(site: WebSite, condition: str) -> None:
    """The condition as SQL selects exactly what the command line's language selects."""
    checked = parse(condition)
    with Reader(db_path(site.home)) as reader:
        expected = [each.header.id for each in reader.trajectories() if checked.holds(load(reader, each))]
    with BrowseReader(db_path(site.home)) as reader:
        rows = reader.page(parse_query(condition).sql, limit=1000).rows
    assert sorted(row.summary.id for row in rows) == sorted(expected)
    if condition.startswith("metadata."):
        assert 0 < len(expected) < 60, "some trajectories have it, and some do not"


def test_pages_follow_each_other_without_gap_or_repeat(site: WebSite, ids: list[str]) -> None:
    gathered: list[str] = []
    path = "/trajectories"
    while path:
        text = site.get(path).text
        gathered += listed(text)
        link = re.search(r'<a class="button" href="([^"]+)" hx-get', text)
        path = html.unescape(link[1]) if link else ""
    assert gathered == ids[::-1]


def test_a_condition_that_reads_every_trajectory_is_walked_in_stretches(
    site: WebSite, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page looks at a stretch, also where nothing matches in it, and says that there is more."""
    monkeypatch.setattr("hermes.store.browse.reader._WALKED", 8)
    monkeypatch.setattr("hermes.store.browse.reader._NEWEST", 8)
    gathered, pages, path = [], 0, "/trajectories?q=messages%3C3"
    first = site.get("/trajectories?q=messages%3E7").text
    assert listed(first) == [] and "look further back" in first and "Nothing matches" not in first
    while path:
        text = site.get(path).text
        gathered += listed(text)
        pages += 1
        link = re.search(r'<a class="button" href="([^"]+)" hx-get', text)
        path = html.unescape(link[1]) if link else ""
    assert gathered == [ids[60]] and pages == 8


def test_the_original_beside_the_compressed(tmp_path: Path) -> None:
    long, short = Message.user("word " * 400), Message.user("many words")
    with Writer(db_path(tmp_path)) as writer:
        original = record(writer, [long, Message.assistant("Done.")])
        known = {"parent_id": original, "relation": Relation.COMPRESSED}
        compressed = record(writer, [short, Message.assistant("Done.")], **known)
    with open_site(tmp_path) as site:
        text = site.get(f"/compare?id={original}&id={compressed}").text
        assert '2,005</span> characters became <span class="num">15<' in text
        assert "Which is better" not in text, "it is no preference"
        assert f"/compare?id={original}&amp;id={compressed}" in site.get(f"/trajectories/{original}").text


def test_the_tokens_that_a_compression_left(tmp_path: Path) -> None:
    notes = {"compression": {"original_tokens": 1234, "compressed_tokens": 56, "map": []}}
    with Writer(db_path(tmp_path)) as writer:
        original = record(writer, [Message.user("word " * 400), Message.assistant("Done.")])
        known = {"parent_id": original, "relation": Relation.COMPRESSED, "metadata": notes}
        compressed = record(writer, [Message.user("words"), Message.assistant("Done.")], **known)
    with open_site(tmp_path) as site:
        text = site.get(f"/compare?id={original}&id={compressed}").text
        assert '1,234</span> tokens became <span class="num">56<' in text
        assert '<progress max="1234" value="56"' in text


def test_what_only_the_model_saw_is_folded(tmp_path: Path) -> None:
    shown = [Message.user("What is 1 + 1?"), Message.assistant("2"), Message.user("What is 4 + 4?")]
    head = header()
    with Writer(db_path(tmp_path)) as writer:
        writer.begin(head)
        for index, message in enumerate(shown):
            writer.append(head.id, Step(index, StepKind.INPUT, message, 0, ephemeral=index < 2))
        answer = Step(3, StepKind.MODEL, Message.assistant("8"), 0, call=model_call())
        writer.append(head.id, answer, context=shown)
        writer.finish(head.id, COMPLETED).result()
    with open_site(tmp_path) as site:
        text = site.get(f"/trajectories/{head.id}").text
    folded = re.search(r'<details class="shared"><summary>Messages from 0 on.*?</details>', text, re.DOTALL)
    assert folded and "1 + 1" in folded[0] and "4 + 4" not in folded[0]
    assert text.count('<details class="shared"') == 1


def test_search_marks_the_words_and_leads_to_the_step(site: WebSite, ids: list[str]) -> None:
    text = site.get("/trajectories?q=" + quote('"attempt 7" repairs')).text
    assert listed(text) == [ids[7]]
    assert "<mark>attempt</mark>" in text
    assert f"/trajectories/{ids[7]}?step=6&amp;find=attempt%207%20repairs#step-6" in text
    assert listed(site.get("/trajectories?q=pytest+reward%3E0.9").text) == [ids[59], ids[57], ids[55]]
    counted = json.loads(site.get("/trajectories/count?q=pytest").text)
    assert counted == {"count": 60, "exact": True}


def test_a_call_and_its_result_are_one_card(site: WebSite, ids: list[str]) -> None:
    text = site.get(f"/trajectories/{ids[0]}").text
    cards = re.split(r"<article ", text)[1:]
    assert len(cards) == 5
    assert "terminal" in cards[2] and 'class="ansi-green"' in cards[2] and "Show all" in cards[2]
    assert "First the tests" in cards[2] and '<details class="reasoning">' in cards[2]
    assert "step 4 bad" in cards[3], "the rating is beside its step"
    assert "good plan" in text and "5<span" in text
    assert text.count("line 39") == 0, "a long output is folded"
    assert "line 39" in site.get(f"/trajectories/{ids[0]}/steps/3").text


def test_relatives_are_linked(site: WebSite, ids: list[str]) -> None:
    text = site.get(f"/trajectories/{ids[4]}").text
    for sibling in (5, 6, 7):
        assert f'href="/trajectories/{ids[sibling]}"' in text
    assert "sub-agents" in site.get(f"/trajectories/{ids[59]}").text
    compared = site.get(f"/compare?id={ids[4]}&id={ids[5]}").text
    assert "First divergence: message 2" in compared and "2 shared messages" in compared


def test_tokens_have_colour_and_mask(site: WebSite, ids: list[str]) -> None:
    text = site.get(f"/trajectories/{ids[1]}/steps/2/tokens").text
    assert "3</span> prompt tokens (mask 0)" in text and "3</span> sampled (mask 1" in text
    assert [int(level) for level in re.findall(r'<span class="t l(\d)" title', text)] == [0, 2, 5]
    assert "not recorded" in site.get(f"/trajectories/{ids[0]}/steps/2/tokens").text


def test_raw_json_and_download_are_complete(site: WebSite, ids: list[str]) -> None:
    assert "finish_reason" in site.get(f"/trajectories/{ids[0]}/steps/2/raw").text
    data = json.loads(site.get(f"/trajectories/{ids[0]}/download").text)
    assert data["header"]["id"] == ids[0] and len(data["steps"]) == 7


def test_images_come_from_the_record_only(tmp_path: Path) -> None:
    message = Message.user("Look")
    message = Message(
        message.role, "Look", images=(PIXEL, "http://127.0.0.1:9/x.png", "data:image/svg+xml;base64,PHN2Zy8+")
    )
    with Writer(db_path(tmp_path)) as writer:
        trajectory = record(writer, [message, Message.assistant("A dot.")])
    with open_site(tmp_path) as site:
        text = site.get(f"/trajectories/{trajectory}").text
        assert re.findall(r'<img[^>]* src="([^"]+)"', text) == [
            f"/trajectories/{trajectory}/steps/0/images/0"
        ]
        picture = site.get(f"/trajectories/{trajectory}/steps/0/images/0")
        assert picture.status == 200 and picture.headers["content-type"] == "image/png"
        assert site.get(f"/trajectories/{trajectory}/steps/0/images/2").status == 404


def test_a_very_long_transcript_comes_in_windows(tmp_path: Path) -> None:
    call = ToolCall("c", "terminal", '{"command": "x"}')
    messages = [Message.user("Go")]
    for number in range(1200):
        calls = (ToolCall(f"c{number}", call.name, call.arguments),)
        messages += [
            Message.assistant(f"Step {number}", tool_calls=calls),
            Message.tool(calls[0], "y" * 2000),
        ]
    with Writer(db_path(tmp_path)) as writer:
        trajectory = record(writer, messages)
    with open_site(tmp_path) as site:
        first = site.get(f"/trajectories/{trajectory}")
        assert first.text.count("<article ") < 110 and len(first.text) < 600_000
        later = site.get(f"/trajectories/{trajectory}?step=2390#step-2390").text
        assert 'id="step-2390"' in later
        matches = site.get(f"/trajectories/{trajectory}?find=Step+1100").text
        assert "1 step" in matches and 'href="/trajectories/' in matches


def test_unfinished_trajectories_are_counted_so_far(tmp_path: Path) -> None:
    with Writer(db_path(tmp_path)) as writer:
        trajectory = record(writer, [Message.user("Go"), Message.assistant("Begun")], outcome=None)
        with BrowseReader(db_path(tmp_path)) as reader:
            for condition in ("turns=1", "tokens>0", "outcome=running", "tool_calls=0"):
                rows = reader.page(parse_query(condition).sql).rows
                assert [row.summary.id for row in rows] == [trajectory], condition


def test_a_running_trajectory_is_followed(tmp_path: Path) -> None:
    call = ToolCall("c1", "terminal", '{"command": "ls"}')
    with Writer(db_path(tmp_path)) as writer:
        trajectory = record(writer, [Message.user("Go")], outcome=None)
        with open_site(tmp_path) as site:
            page = f"/trajectories/{trajectory}"
            text = site.get(page).text
            assert f'data-tail="{page}/events?after=1" data-tail-cards="{page}?from=1"' in text
            connection = http.client.HTTPConnection(site.host, timeout=60)
            connection.request("GET", f"{page}/events?after=1")
            response = connection.getresponse()
            assert response.getheader("content-type", "").startswith("text/event-stream")
            asked = Step(1, StepKind.MODEL, Message.assistant("", tool_calls=(call,)), 5, call=model_call())
            writer.append(trajectory, asked, context=()).result()
            assert next_event(response) == {"steps": 2, "ended": False}
            waiting = site.get(f"{page}?from=1", {"hx-request": "true"}).text
            assert f'data-tail-cards="{page}?from=1"' in waiting, "its result belongs to the same card"
            result = ToolResult("c1", "terminal", True, 3.0)
            writer.append(
                trajectory, Step(2, StepKind.TOOL, Message.tool(call, "a.py"), 5, result=result)
            ).result()
            assert next_event(response) == {"steps": 3, "ended": False}
            whole = site.get(f"{page}?from=1", {"hx-request": "true"}).text
            assert whole.count("<article") == 1 and f'data-tail-cards="{page}?from=3"' in whole
            writer.finish(trajectory, COMPLETED).result()
            assert next_event(response) == {"steps": 3, "ended": True}
            assert response.read() == b"", "the stream has ended"
            connection.close()
            assert "data-tail" not in site.get(page).text


def next_event(response: http.client.HTTPResponse) -> dict[str, object]:
    while line := response.readline():
        if line.startswith(b"data: "):
            assert response.readline() == b"\n"
            event: dict[str, object] = json.loads(line[6:])
            return event
    raise AssertionError("the stream ended")


def test_a_preference_is_given_where_two_part(tmp_path: Path) -> None:
    ids = fill(tmp_path, 4)
    with open_site(tmp_path) as site:
        page = site.get(f"/compare?id={ids[0]}&id={ids[1]}").text
        form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
        assert site.post("/rate", {**form, "decision": "right"}).status == 303
    with Reader(db_path(tmp_path)) as reader:
        (rating,) = [rating for rating in reader.ratings(ids[0]) if rating.other_id]
        assert (rating.value, rating.other_id) == (-2 / 3, ids[1])
