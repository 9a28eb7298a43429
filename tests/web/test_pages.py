"""The smaller pages: policies, batches, datasets, environments, skills, jobs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.config.paths import db_path
from hermes.core import Message, Source
from hermes.store import Writer
from hermes.training.policy_registry import BASE_ID, PolicyRecord, PolicyRegistry
from hermes.web.pages.batches import histogram
from tests.cli.process import hermes
from tests.records import record
from tests.waiting import wait_until
from tests.web.samples import fill, keep_adapter
from tests.web.site import WebSite, open_site


@pytest.fixture
def policy_site(tmp_path: Path) -> Iterator[WebSite]:
    registry = PolicyRegistry(tmp_path)
    registry.add(
        PolicyRecord(
            "01POLICYA", "hermes/smollm2", "tinker://a", "tinker://a", method="dpo", decision="better"
        )
    )
    registry.add(PolicyRecord("01POLICYB", "hermes/smollm2", "tinker://b", "tinker://b", parent="01POLICYA"))
    for name in ("01POLICYA", "01POLICYB"):
        keep_adapter(tmp_path, name)
    with open_site(tmp_path) as site:
        yield site


def test_promote_and_roll_back(policy_site: WebSite) -> None:
    text = policy_site.get("/policies").text
    assert "the base model" in text and "better" in text
    assert re.search(
        r"base</span> → <span class=\"mono\">\S*POLICYA</span> → <span class=\"mono\">\S*POLICYB", text
    )
    registry = PolicyRegistry(policy_site.home)
    registry.add(PolicyRecord("01NOWHERE", "hermes/smollm2", "tinker://n/weights/1", "tinker://n/weights/1"))
    refused = policy_site.post("/policies/promote", {"policy": "01NOWHERE"})
    assert refused.status == 400 and "are not in this home" in refused.text
    assert policy_site.post("/policies/promote", {"policy": "01POLICYA"}).status == 303
    assert policy_site.post("/policies/promote", {"policy": "01POLICYB"}).status == 303
    assert registry.current().id == "01POLICYB"
    assert policy_site.post("/policies/promote", {"policy": "01POLICYB"}).status == 409
    assert policy_site.post("/policies/promote", {"policy": "NOTHING"}).status == 400
    assert policy_site.post("/policies/rollback", {"from": "01POLICYA"}).status == 409
    assert policy_site.post("/policies/rollback", {"from": "01POLICYB"}).status == 303
    assert registry.current().id == "01POLICYA", "the one before"
    assert policy_site.post("/policies/rollback", {"from": "01POLICYA"}).status == 303
    assert registry.current().id == BASE_ID
    assert policy_site.post("/policies/rollback", {"from": BASE_ID}).status == 400
    assert "rolled back from 01POLICYB" in policy_site.get("/policies").text


def test_a_policy_of_texts_shows_them_as_text_and_is_promoted(policy_site: WebSite) -> None:
    texts = {"system_prompt": "Be brief.\n<script>alert(1)</script>", "tool:terminal": "Runs a command."}
    record = PolicyRecord("01TEXTS", "openai/gpt-4.1-mini", None, None, method="text", texts=dict(texts))
    PolicyRegistry(policy_site.home).add(record)
    page = policy_site.get("/policies").text
    assert "text <code>system_prompt</code>" in page and "Runs a command." in page
    assert "&lt;script&gt;alert(1)" in page and "<script>alert(1)" not in page
    assert policy_site.post("/policies/promote", {"policy": "01TEXTS"}).status == 303
    assert "openai/gpt-4.1-mini" in policy_site.get("/policies").text


def test_a_batch_shows_how_its_samples_ended(site: WebSite, ids: list[str]) -> None:
    assert "batch-1" in site.get("/batches").text
    text = site.get("/batches/batch-1").text
    assert "max turns" in text and "limit" in text
    assert re.search(r">16</a>", text) and re.search(r">4</a>", text)
    assert "<h2>Rewards</h2>" in text and "<dt>Model</dt>" in text
    grid = text.partition("<h2>Samples</h2>")[2]
    assert len(re.findall(r'href="/trajectories/[0-9A-Z]{26}"', grid)) == 20
    assert "Fix the failing test of module 5" in grid and "task:batch-1:" not in grid, (
        "the words of a task, not its id"
    )
    assert site.get("/batches/nothing").status == 404


def test_rewards_are_counted_in_bins() -> None:
    bins = histogram([0.0, 0.05, 0.5, 1.0, 1.0])
    assert (
        len(bins) == 10
        and [b.trajectories for b in bins if b.trajectories] == [2, 1, 2]
        and bins[-1].high == 1.0
    )
    assert histogram([1.0, 1.0]) == [(1.0, 1.0, 2)] and histogram([]) == []


def test_a_dataset_is_seen_before_it_is_written(site: WebSite) -> None:
    text = site.get("/datasets?preview=1&format=sharegpt&q=run%3Dbatch-1").text
    assert "conversations" in text and "Export all rows" in text
    assert site.get("/datasets?format=nothing").status == 400
    assert site.get("/datasets?preview=1&q=x%3D1").status == 400
    assert site.get("/datasets/files/..%2Fhermes.db").status == 404
    assert site.post("/datasets", {"format": "nothing"}).status == 400


def test_exports_of_the_command_line_are_named_and_not_served(site: WebSite, tmp_path: Path) -> None:
    data = tmp_path / "elsewhere" / "mine.jsonl"
    data.parent.mkdir()
    done = hermes(site.home, "export", "--all", "--output", str(data))
    assert done.returncode == 0, done.stderr
    page = site.get("/datasets").text
    assert page.count(str(data)) == 1 and "mine.manifest.json" not in page
    assert site.get("/datasets/files/mine.jsonl").status == 404
    data.unlink()
    assert str(data) not in site.get("/datasets").text


def test_what_the_list_shows_is_what_is_exported(site: WebSite) -> None:
    text = site.get("/trajectories?q=run%3Dbatch-1+reward%3E0.5").text
    link = re.search(r'href="(/datasets\?[^"]+)">Export these', text)
    assert link
    page = site.get(html.unescape(link[1])).text
    assert 'value="run=batch-1 reward&gt;0.5"' in page and "Export all rows" in page


def test_picked_trajectories_are_previewed_with_their_command_and_their_loss(
    site: WebSite, ids: list[str]
) -> None:
    text = site.get(f"/datasets?preview=1&format=axolotl&id={ids[1]}&id={ids[2][-10:]}").text
    assert "2 picked trajectories" in text and text.count("<h3>Row") == 2
    command = f"hermes export --format axolotl --id {ids[1]} --id {ids[2]} --output axolotl.jsonl"
    assert command in html.unescape(text)
    parts = re.findall(r"<dt>(\S+) <span class=\"mark\">([a-z ]+)</span>", text)
    assert set(parts) == {
        ("system", "no loss"),
        ("user", "no loss"),
        ("assistant", "loss"),
        ("tool", "no loss"),
    }
    assert f'name="ids" value="{ids[1]} {ids[2]}"' in text
    assert site.get("/datasets?id=NOTHING").status == 404
    many = site.get("/datasets?" + "&".join(f"id={number}" for number in range(501)))
    assert many.status == 400 and "501 trajectories are picked" in many.text


def test_an_export_is_a_job_and_a_file(tmp_path: Path) -> None:
    fill(tmp_path, 8)
    with open_site(tmp_path) as site:
        started = site.post("/datasets", {"format": "sharegpt", "q": "outcome=completed Done repairs"})
        assert started.status == 303
        job = started.headers["location"]
        page = wait_until(lambda: None if "tag-live" in (text := site.get(job).text) else text)
        assert "done" in page, page
        command = html.unescape(page).partition("<code>")[2].partition("</code>")[0]
        assert "--text 'Done repairs'" in command, "as it is typed in a shell"
        name = re.search(r'href="/datasets/files/(sharegpt-[0-9-]+\.jsonl)"', site.get("/datasets").text)
        assert name
        reply = site.get(f"/datasets/files/{name[1]}")
        assert reply.status == 200 and reply.text.count("\n") == 6
        assert "attachment" in reply.headers["content-disposition"]


def test_environments_and_skills_are_listed(site: WebSite) -> None:
    assert "calculator" in site.get("/environments").text
    assert site.post("/environments/check", {"environment": "/etc/passwd"}).status == 400
    assert site.post("/environments/delete", {"environment": "calculator"}).status == 404
    assert "axolotl" in site.get("/skills").text
    assert site.get("/skills/axolotl").status == 200
    assert site.get("/skills/../../etc/passwd").status == 404
    assert site.get("/skills/nothing").status == 404


def test_rollouts_of_training_are_shown_when_they_are_asked_for(tmp_path: Path) -> None:
    with Writer(db_path(tmp_path)) as writer:
        for number in range(8):
            source = Source.ENV if number % 4 else Source.CHAT
            conversation = [Message.user(f"Task {number} of {source}"), Message.assistant("Done.")]
            record(writer, conversation, source=source)
    with open_site(tmp_path) as site:
        for path in ("/", "/trajectories"):
            text = site.get(path).text
            assert ("of chat" in text, "of env" in text) == (True, False), path
        (chip,) = re.findall(r'href="([^"]+)"[^>]*>rollouts of training<', text)
        rollouts = site.get(chip).text
        assert ("of chat" in rollouts, "of env" in rollouts) == (False, True)
        everything = site.get("/trajectories?q=").text
        assert "of chat" in everything and "of env" in everything
        assert "of env" not in "".join(site.get("/rate").text for _ in range(5))
        assert "of env" in site.get("/rate?q=source%3Denv").text
