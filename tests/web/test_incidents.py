"""What happened to runs, on their pages: columns of the table, marks on the curves, alert rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.config.load import load
from hermes.config.paths import db_path
from hermes.core import Message, Reward, Source, Step, StepKind, ToolCall
from hermes.rl.run import RunState, RunStatus
from hermes.store import Writer
from tests.records import COMPLETED, header, model_call
from tests.rl.world import answer, hermes
from tests.web.site import WebSite, open_site
from tests.web.training import fill_runs, make_run

RULE = "train/loss > 0.3"
"""It holds at the spike of step 61."""
DEFAULT_RULES = ("health/forbidden_paths > 0", "proof/warning > 0")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[WebSite]:
    fill_runs(tmp_path)
    with open_site(tmp_path) as site:
        yield site


def marks(site: WebSite) -> list[tuple[int, str, str]]:
    (run,) = json.loads(site.get("/runs/curves?id=a1b2c3d4&name=train/loss").text)["runs"]
    return [(mark["step"], mark["kind"], mark["text"]) for mark in run["markers"]]


def stored_rules(site: WebSite) -> tuple[str, ...]:
    return load(environ={"HERMES_HOME": str(site.home)}).settings.rl.alerts


def test_the_table_has_tokens_memory_cost_commit_and_digest(site: WebSite) -> None:
    row = re.search(r'<tr data-row data-run="a1b2c3d4">.*?</tr>', site.get("/runs").text, re.S)
    assert row is not None
    cells = dict(re.findall(r'<td class="[^"]*" data-name="([^"]+)"[^>]*>(.*?)</td>', row[0], re.S))
    assert (cells["tok/s"], cells["Memory"], cells["Cost"]) == ("500", "2.5 GB", "$0.70")
    assert "0123456*" in cells["Commit, config"]
    digests = re.findall(r'<span class="dim">([0-9a-f]{8})</span>', site.get("/runs").text)
    assert len(set(digests)) == 2, "the learning rates differ"
    page = site.get("/runs/a1b2").text
    assert "Peak memory" in page and "2.5 GB" in page and "$0.70" in page and "0123456*" in page


def test_the_digest_is_that_of_the_configuration(site: WebSite) -> None:
    make_run(site.home, "99887766", "calculator", 5, RunState.COMPLETED)
    config = site.home / "runs" / "99887766" / "config.yaml"
    config.write_text(config.read_text().replace("wandb_name: x", "wandb_name: another"))
    digests = re.findall(r'<span class="dim">([0-9a-f]{8})</span>', site.get("/runs").text)
    assert len(digests) == 3 and len(set(digests)) == 2


def test_crashes_and_resumes_are_marked_where_the_curve_goes_on(site: WebSite) -> None:
    assert marks(site) == [
        (50, "checkpoint", "best checkpoint"),
        (50, "crash", "continued from here after a crash"),
        (70, "crash", "engine killed (signal 9); it is started again"),
        (100, "resume", "resumed; it had ended: stopped"),
    ]
    page = site.get("/runs/a1b2").text
    assert "1 checkpoint<" in page and "1 resume<" in page and "2 crashes<" in page
    assert 'href="/runs/a1b2c3d4/steps/70"' in page


def test_old_crashes_are_kept_longer_than_other_events() -> None:
    status = RunStatus().with_event("engine killed", "crash")
    for number in range(80):
        status = status.with_event(f"event {number}")
    texts = [event["text"] for event in RunStatus.from_json(status.to_json()).events]
    assert texts[0] == "engine killed" and texts[1:] == [f"event {number}" for number in range(30, 80)]


def test_a_rule_is_added_marked_on_the_curve_and_removed(site: WebSite) -> None:
    assert site.post("/runs/alerts/add", {"rule": " train/loss>0.3 "}).status == 303
    assert stored_rules(site) == (*DEFAULT_RULES, RULE)
    assert [mark for mark in marks(site) if mark[1] == "alert"] == [
        (61, "alert", "train/loss > 0.3: 0.4807 (step 61)")
    ]
    page = site.get("/runs/a1b2").text
    assert re.search(r'class="past".*train/loss &gt; 0.3', page) and "1 alert<" in page
    assert site.post("/runs/alerts/add", {"rule": RULE}).status == 409
    assert site.post("/runs/alerts/add", {"rule": "nonsense"}).status == 400
    assert site.post("/runs/alerts/remove", {"rule": RULE}).status == 303
    assert stored_rules(site) == DEFAULT_RULES and all(mark[1] != "alert" for mark in marks(site))
    assert site.post("/runs/alerts/remove", {"rule": RULE}).status == 404
    for rule in DEFAULT_RULES:
        assert site.post("/runs/alerts/remove", {"rule": rule}).status == 303
    assert stored_rules(site) == (), "the default does not come back"


def test_a_rule_that_holds_now_is_in_the_table(site: WebSite) -> None:
    folder = make_run(site.home, "11223344", "letters", 9, RunState.PENDING)
    site.post("/runs/alerts/add", {"rule": "health/entropy > 0.1 for 3"})
    row = re.search(r'data-run="11223344">.*?</tr>', site.get("/runs").text, re.S)
    assert row is not None and "alert</span>" in row[0] and "health/entropy &gt; 0.1 for 3: 1.16" in row[0]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "time_s": 1, "health/entropy": 0.0}\n')
    row = re.search(r'data-run="11223344">.*?</tr>', site.get("/runs").text, re.S)
    assert row is not None and "alert</span>" not in row[0]


def test_a_forbidden_path_leads_from_the_alert_to_the_step_that_names_it(site: WebSite) -> None:
    folder = make_run(site.home, "11223344", "letters", 9, RunState.PENDING)
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    row |= {"step": 10, "time_s": row["time_s"] + 6, "health/forbidden_paths": 0.25}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    call = ToolCall("c1", "terminal", json.dumps({"command": "cat /tests/<b>.py"}))
    touches = [{"step": 1, "tool": "terminal", "path": "/tests/<b>.py"}, "nonsense", {"step": "x"}]
    with Writer(db_path(site.home)) as writer:
        at_ms = int(row["time_s"] * 1000) - 500
        head = replace(header(run_id="11223344"), source=Source.ENV, created_at_ms=at_ms)
        writer.begin(head)
        writer.append(head.id, Step(0, StepKind.INPUT, Message.user("Go"), at_ms))
        asked = Step(1, StepKind.MODEL, Message.assistant("", tool_calls=(call,)), at_ms, call=model_call())
        writer.append(head.id, asked, context=())
        writer.finish(head.id, COMPLETED).result()
        writer.add_reward(Reward(head.id, 1.0, "letters", {"forbidden_paths": touches}, at_ms)).result()
    table = re.search(r'data-run="11223344">.*?</tr>', site.get("/runs").text, re.S)
    assert table is not None and "health/forbidden_paths &gt; 0: 0.25" in table[0]
    page = site.get("/runs/11223344").text
    assert "Rollouts that name a forbidden path" in page
    assert 'href="/runs/11223344/steps/10"' in page, "the alert leads to its step"
    rollouts = site.get("/runs/11223344/steps/10").text
    assert head.id in rollouts and ">forbidden path</span>" in rollouts and "<b>" not in rollouts
    card = site.get(f"/trajectories/{head.id}").text
    assert 'forbidden path <span class="mono">/tests/&lt;b&gt;.py</span>' in card


def test_the_same_from_the_command_line(site: WebSite) -> None:
    assert hermes(site.home, "rl", "alerts", "a1b2").stdout == "no alert in 120 steps\n"
    for rule in DEFAULT_RULES:
        site.post("/runs/alerts/remove", {"rule": rule})
    unset = hermes(site.home, "rl", "alerts", "a1b2")
    assert unset.returncode == 2 and "no alert rule is set" in unset.stderr
    site.post("/runs/alerts/add", {"rule": RULE})
    (alert,) = answer(site.home, "rl", "alerts", "a1b2")
    assert (alert["rule"], alert["step"], alert["ongoing"]) == (RULE, 61, False)
    assert hermes(site.home, "rl", "alerts", "a1b2").stdout.startswith("train/loss > 0.3: 0.4807 (step 61)")
    quiet = hermes(site.home, "rl", "alerts", "a1b2", "--rule", "train/loss > 99")
    assert quiet.stdout == "no alert in 120 steps\n"
    report = answer(site.home, "rl", "diff", "a1b2", "e5f6")
    assert report["differing"]["tinker.learning_rate"] == {"a1b2c3d4": "4e-05", "e5f60718": "0.0001"}
    assert "tinker.learning_rate" in hermes(site.home, "rl", "diff", "a1b2", "e5f6").stdout
