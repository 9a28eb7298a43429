"""Starts of a trainer are recorded with what came before; alert rules hold where the metrics break them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from hermes.config.edit import set_value
from hermes.config.load import load
from hermes.errors import ConfigError, UsageError
from hermes.training.monitor.incidents.alerts import AlertSink, find_alerts, parse_rule
from hermes.training.monitor.incidents.starts import CRASH, read_starts, record_start
from hermes.training.monitor.machine_card import source_commit
from hermes.training.monitor.sinks import Sinks


def test_every_start_has_its_step_and_what_came_before(tmp_path: Path) -> None:
    assert read_starts(tmp_path) == []
    for step, finished in ((0, None), (0, None), (50, None), (80, "stopped")):
        record_start(tmp_path, step, finished)
    starts = read_starts(tmp_path)
    assert [(start.step, start.after) for start in starts] == [
        (0, None),
        (0, CRASH),
        (50, CRASH),
        (80, "stopped"),
    ]
    assert [start.crashed for start in starts] == [False, True, True, False]
    with (tmp_path / "starts.jsonl").open("a") as file:
        file.write('{"at_ms": 1, "st')
    assert read_starts(tmp_path) == starts, "a line that was cut off is left out"


def test_a_run_without_a_record_was_started_before(tmp_path: Path) -> None:
    record_start(tmp_path, 30, "all steps made")
    assert read_starts(tmp_path)[0].after == "all steps made"


def test_a_rule_holds_from_the_step_at_which_it_has_lasted(tmp_path: Path) -> None:
    values = [0.1, 0.6, 0.7, None, 0.8, 0.2, 0.9]
    rows = [{"step": step, **({"kl": value} if value else {})} for step, value in enumerate(values, 1)]
    once, lasting = (
        find_alerts(rows, [parse_rule("kl>0.5")]),
        find_alerts(rows, [parse_rule("kl >= 0.6 for 3")]),
    )
    assert [(alert.step, alert.last_step, alert.value, alert.ongoing) for alert in once] == [
        (2, 5, 0.8, False),
        (7, 7, 0.9, True),
    ]
    assert [(alert.step, alert.last_step, alert.ongoing) for alert in lasting] == [(5, 5, False)]
    assert once[0].sentence() == "kl > 0.5: 0.8 (step 2 to 5)"


@pytest.mark.parametrize("text", ["", "kl", "kl = 3", "kl > x", "kl > nan", "> 3", "kl > 1 for 0", "a b > 1"])
def test_what_is_no_rule_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="no alert rule"):
        parse_rule(text)
    with pytest.raises(ConfigError):
        set_value(tmp_path, "rl.alerts", json.dumps([text]))


def test_the_trainer_logs_an_alert_when_it_begins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_value(tmp_path, "rl.alerts", '["train/loss > 2", "reward/mean < -1e-3 for 2"]')
    rules = load(environ={"HERMES_HOME": str(tmp_path)}).settings.rl.alerts
    sinks = Sinks([AlertSink([parse_rule(rule) for rule in rules])])
    with caplog.at_level(logging.WARNING):
        for step, loss in enumerate((1.0, 3.0, 4.0), 1):
            sinks.write(step, {"train/loss": loss, "reward/mean": -1.0})
        sinks.rewind(1)
        sinks.write(2, {"train/loss": 5.0})
    assert [record.getMessage() for record in caplog.records] == [
        "alert: train/loss > 2: 3 (step 2)",
        "alert: reward/mean < -0.001 for 2: -1 (step 2)",
        "alert: train/loss > 2: 5 (step 2)",
    ]
    assert sinks.failures.total() == 0


def test_the_commit_of_a_checkout_is_known() -> None:
    commit = source_commit()
    assert commit is None or len(commit.removesuffix("-dirty")) >= 12
