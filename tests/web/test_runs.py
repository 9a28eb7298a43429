"""Runs on the dashboard: curves, files that grow or are rewritten, forms."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.config.paths import db_path
from hermes.core import Message, Reward, Source, Step, StepKind
from hermes.rl.run import RunState
from hermes.store import Writer
from hermes.training.monitor.incidents.alerts import parse_rule
from hermes.training.monitor.series import MAX_ROWS
from hermes.web.runs.configs import differences
from hermes.web.runs.curves import MetricsCache, curve, moving_average, panels
from tests.records import COMPLETED, header, model_call
from tests.web.site import WebSite, open_site
from tests.web.training import fill_runs, make_run, metrics_row


@pytest.fixture(scope="module")
def run_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSite]:
    home = tmp_path_factory.mktemp("runs") / "home"
    fill_runs(home)
    with open_site(home) as site:
        yield site


def test_the_average_begins_at_the_first_value() -> None:
    assert moving_average([4.0, 4.0, 4.0], 0.9) == pytest.approx([4.0] * 3)
    assert moving_average([1.0, 3.0], 0.5) == pytest.approx([1.0, 7 / 3])


def write_rows(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_values_that_are_not_numbers_are_left_out(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "metrics.jsonl",
        {"step": 1, "a": float("nan"), "b": "x"},
        {"step": 2, "a": 1.0, "c": True},
        {"step": 3, "a": float("inf")},
    )
    with MetricsCache().reading(path) as series:
        assert curve(series, "a").steps == [2]
        assert [panel.name for panel in panels(series.latest)] == ["a"]


def test_metrics_are_read_as_they_grow_and_again_when_rewritten(tmp_path: Path) -> None:
    path, cache = tmp_path / "metrics.jsonl", MetricsCache()

    def values() -> list[float]:
        with cache.reading(path) as series:
            rows = series.recent(100)
            assert [row["x"] for row in rows] == curve(series, "x").values
            return [row["x"] for row in rows]

    assert values() == []
    path.write_text('{"step": 1, "x": 1}\n{"step": 2, "x": 2}\n{"step": 3, "x"')
    assert values() == [1, 2], "a torn line is not a step yet"
    with path.open("a") as file:
        file.write(': 3}\nnonsense\n{"step": 2, "x": 20}\n')
    assert values() == [1, 20, 3], "of a step that was written twice the later row counts"
    with cache.reading(path) as series:
        assert [series.find(step) for step in (2, 4)] == [({"step": 2, "x": 20}, 0.0), None]
    replacement = write_rows(tmp_path / "new", {"step": 1, "x": 7})
    replacement.rename(path)
    assert values() == [7], "the run resumed from an earlier step"


def test_of_a_long_run_every_kth_row_is_kept_and_the_others_are_found_in_the_file(tmp_path: Path) -> None:
    rows = [{"step": step, "time_s": 10.0 * step, "x": float(step % 7)} for step in range(1, 6001)]
    rows[4321]["x"] = 99.0
    path = write_rows(tmp_path / "metrics.jsonl", *rows)
    with MetricsCache().reading(path, [parse_rule("x > 50")]) as series:
        assert (series.count, series.last_step) == (6000, 6000)
        line = curve(series, "x")
        assert 1000 < len(line.steps) <= MAX_ROWS + 1
        assert line.steps == sorted(line.steps) and (line.steps[0], line.steps[-1]) == (1, 6000)
        assert [alert.step for alert in series.alerts] == [4322], "rules see every row"
        assert series.find(18) == (rows[17], 170.0)
        assert series.find(6001) is None
        assert series.step_at(10_000) == 1 and series.step_at(0) == 0
        assert series.rows_after(5998) == rows[5998:] and series.rows_after(10) is None
        assert series.recent(3) == rows[-3:]


def test_a_file_that_was_rewritten_in_place_is_read_again(tmp_path: Path) -> None:
    path, cache = tmp_path / "metrics.jsonl", MetricsCache()
    write_rows(path, *({"step": step, "x": 1.0} for step in range(1, 50)))
    with cache.reading(path) as series:
        assert series.latest["x"] == 1.0
    write_rows(path, *({"step": step, "x": 2.0} for step in range(1, 60)))
    with cache.reading(path) as series:
        assert set(curve(series, "x").values) == {2.0}
    write_rows(path, {"step": 1, "x": 3.0})
    with cache.reading(path) as series:
        assert (series.count, series.latest["x"]) == (1, 3.0)


def test_several_metrics_of_one_kind_share_a_panel() -> None:
    names = [
        "stop/completed",
        "stop/max_turns",
        "reward/mean",
        "reward/p10",
        "reward/p50",
        "reward/p90",
        "zz",
    ]
    assert [(panel.title, panel.metrics, panel.labels) for panel in panels(names)] == [
        ("Reward", ("reward/mean",), ()),
        ("Reward quantiles", ("reward/p10", "reward/p50", "reward/p90"), ("p10", "p50", "p90")),
        ("Why rollouts ended", ("stop/completed", "stop/max_turns"), ("completed", "max turns")),
        ("zz", ("zz",), ()),
    ]
    assert panels(["env/maze/reward", "env/sums/reward", "reward/mean"])[1].labels == ("maze", "sums")


def test_the_table_and_a_run_need_no_process(run_site: WebSite) -> None:
    table = run_site.get("/runs").text
    assert "calculator" in table and "gsm8k" in table and "completed" in table
    assert "first look" in table and re.search(r">a1b2c3d4</a>", table), "a run is named by its name"
    text = run_site.get("/runs/a1b2").text
    assert "<h1>a1b2c3d4</h1>" in text and "first look" in text
    assert re.search(r'<span id="run-step">120</span>', text) and "polyline" in text
    assert "best" in text and "tinker.learning_rate" in text


def test_curves_of_several_runs(run_site: WebSite) -> None:
    data = json.loads(
        run_site.get("/runs/curves?id=a1b2c3d4&id=e5f60718&name=train/loss&name=reward/mean").text
    )
    first, second = data["runs"]
    assert (first["last"], second["last"]) == (120, 80)
    assert max(first["curves"]["train/loss"]["values"]) > 0.4, "the spike of step 61"
    mark = {"step": 50, "kind": "checkpoint", "text": "best checkpoint", "metric": ""}
    assert second["markers"] == [mark]


def test_what_differs_between_two_runs(run_site: WebSite) -> None:
    text = run_site.get("/runs/diff?id=a1b2c3d4&id=e5f60718").text
    assert ("tinker.learning_rate" in text and "1e-4" in text.lower()) or "0.0001" in text
    differing, equal = differences({"a": {"x": "1", "y": "2"}, "b": {"x": "1", "z": "3"}})
    assert differing == [("y", ["2", None]), ("z", [None, "3"])] and equal == 1


def test_from_a_step_to_its_rollouts(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "11223344", "calculator", 10, RunState.RUNNING)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ids = []
    with Writer(db_path(tmp_path)) as writer:
        for row, reward in ((rows[4], 0.1), (rows[4], 0.9), (rows[8], 0.5)):
            at_ms = int(row["time_s"] * 1000) - 500
            trajectory = _rollout(writer, at_ms)
            writer.add_reward(Reward(trajectory, reward, "calculator", {}, at_ms)).result()
            ids.append(trajectory)
    with open_site(tmp_path) as site:
        text = site.get("/runs/11223344/steps/5").text
        assert re.findall(r'<li><a href="/trajectories/([0-9A-Z]+)"', text) == [ids[1], ids[0]], "best first"
        assert site.get("/runs/11223344/steps/99").status == 404


def _rollout(writer: Writer, at_ms: int) -> str:
    head = replace(header(run_id="11223344"), source=Source.ENV, created_at_ms=at_ms)
    writer.begin(head)
    writer.append(head.id, Step(0, StepKind.INPUT, Message.user("Go"), at_ms))
    writer.append(
        head.id, Step(1, StepKind.MODEL, Message.assistant("Done"), at_ms, call=model_call()), context=()
    )
    writer.finish(head.id, COMPLETED).result()
    return head.id


def test_events_come_as_the_run_writes(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "11223344", "calculator", 5, RunState.RUNNING)
    with open_site(tmp_path) as site:
        connection = http.client.HTTPConnection(site.host, timeout=30)
        connection.request("GET", "/runs/11223344/events?after=5")
        response = connection.getresponse()
        assert response.getheader("content-type", "").startswith("text/event-stream")
        first = _next_event(response)
        assert first["state"] == "lost", "no supervisor lives"
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics_row(6, time.time())) + "\n")
        event = _next_event(response)
        assert [row["step"] for row in event["rows"]] == [6]
        connection.close()


def _next_event(response: http.client.HTTPResponse) -> dict[str, object]:
    while True:
        line = response.readline()
        assert line, "the stream ended"
        if line.startswith(b"data: "):
            event: dict[str, object] = json.loads(line[6:])
            return event


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    make_run(tmp_path, "11223344", "calculator", 5, RunState.COMPLETED)
    bad = make_run(tmp_path, "55667788", "gsm8k", 5, RunState.COMPLETED)
    (bad / "status.json").write_text("{")
    (bad / "training.json").write_text("[]")
    other = tmp_path / "runs" / "sft-1"
    other.mkdir()
    (other / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2.0, "time_s": 1}\n')
    with open_site(tmp_path) as site:
        text = site.get("/runs").text
        assert "damaged" in text and "calculator" in text and "sft-1" in text
        assert site.get("/runs/sft-1").status == 200


def test_stop_refuses_what_has_ended(run_site: WebSite) -> None:
    assert run_site.post("/runs/a1b2c3d4/stop", {}).status == 409
    assert run_site.post("/runs/a1b2c3d4/weights", {"format": "exe"}).status == 400
    assert run_site.post("/runs/a1b2c3d4/weights", {"step": "x"}).status == 400


def test_the_form_has_the_fields_and_locks_of_the_command_line(run_site: WebSite) -> None:
    text = run_site.get("/runs/new?environment=calculator").text
    assert 'name="field.env.group_size"' in text
    assert re.search(r'name="field.env.total_steps"[^>]*disabled', text)
    refused = run_site.confirm("/runs/new", {"environment": "calculator", "field.env.group_size": "1"})
    assert refused.status == 400 and "env.group_size" in refused.text and "Traceback" not in refused.text
    unknown = run_site.post("/runs/new", {"environment": "calculator", "field.nothing": "1"})
    assert unknown.status == 400 and "no field" in unknown.text
