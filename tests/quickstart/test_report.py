"""What a quickstart leaves for its reader."""

from __future__ import annotations

import json
from pathlib import Path

from hermes.core.stats import wilson
from hermes.quickstart import report
from hermes.quickstart.act import Stage
from hermes.quickstart.report import Point, QuickstartOutcome
from hermes.quickstart.stages import step_line


def outcome(folder: Path) -> QuickstartOutcome:
    return QuickstartOutcome(
        run_name="quickstart-1118",
        device="cpu",
        generated=8,
        right=5,
        evaluations=(("base model", wilson(0, 10)), ("after learning", wilson(9, 10))),
        curve=(Point(1, wilson(4, 8)), Point(2, wilson(6, 8))),
        stages=(Stage("generate", 12.0), Stage("RL", 30.0)),
        policy="quickstart-1118@step-2",
        folder=folder,
    )


def test_the_report_has_every_evaluation_with_its_interval_and_every_stage_with_its_time(
    tmp_path: Path,
) -> None:
    lines = [line.split() for line in report.text(outcome(tmp_path)).splitlines()]
    assert ["base", "model", "0%", "0%", "to", "28%"] in lines
    assert ["after", "learning", "90%", "60%", "to", "98%"] in lines
    assert ["42", "s", "on", "cpu:", "generate", "12", "s,", "RL", "30", "s"] in lines


def test_it_ends_with_exactly_two_next_steps(tmp_path: Path) -> None:
    talk, look = report.text(outcome(tmp_path)).partition("Next:\n")[2].splitlines()
    assert talk.strip().startswith("hermes --model policy:quickstart-1118@step-2 ")
    assert look.strip() == "hermes web"


def test_picture_and_data_are_written_and_say_the_same(tmp_path: Path) -> None:
    report.write(outcome(tmp_path))
    assert (tmp_path / "reward.svg").read_text().startswith("<svg ")
    data = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert data["evaluations"]["after learning"]["mean"] == 0.9
    assert data["curve"][1]["step"] == 2 and data["curve"][1]["reward"]["mean"] == 0.75
    assert data["seconds"] == 42.0


def test_a_step_is_one_line_with_a_bar_as_long_as_its_reward() -> None:
    nothing, half, everything = (step_line(Point(3, wilson(right, 8)), 16) for right in (0, 4, 8))
    assert [line.count("█") for line in (nothing, half, everything)] == [0, 12, 24]
    assert "step  3/16" in half and " 50%  (22% to 78%)" in half
    assert len({len(line.partition("  (")[0]) for line in (nothing, half, everything)}) == 1
