"""What a quickstart leaves for its reader."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

from hermes.cli.main import COMMANDS
from hermes.core.stats import interval
from hermes.quickstart import report
from hermes.quickstart.act import EngineTokens, Stage
from hermes.quickstart.evaluate import PolicyEvaluation
from hermes.quickstart.outcome import Point, QuickstartOutcome


def measured(greedy: int, sampled: int) -> PolicyEvaluation:
    def some(right: int) -> list[float]:
        return [1.0] * right + [0.0] * (10 - right)

    return PolicyEvaluation(interval(some(greedy)), interval(some(sampled)))


def outcome(folder: Path, name: str = "quickstart-1") -> QuickstartOutcome:
    return QuickstartOutcome(
        run_name=name,
        device="cpu",
        generated=8,
        right=5,
        policies=(
            ("base", measured(0, 0)),
            ("after SFT", measured(9, 7)),
            ("after GRPO", measured(10, 9)),
        ),
        losses=(0.7, 0.3),
        curve=(Point(1, 0.5, 1.0), Point(2, 0.75, 0.5)),
        stages=(Stage("generate", 12.0, EngineTokens(1200, 0)), Stage("SFT", 30.0, EngineTokens(0, 34_567))),
        weights="tinker://run/sampler_weights/step-2",
        folder=folder,
    )


class Cells(HTMLParser):
    """The texts of a page's tables."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._inside = tag in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found.append(data)
        self._inside = False


def test_the_table_has_every_policy_with_its_interval_and_every_stage_with_time_and_tokens(
    tmp_path: Path,
) -> None:
    done = outcome(tmp_path)
    shown = report.text(done, report.write(done))
    lines = [line.split() for line in shown.splitlines()]
    assert ["base", "0.0%", "(0.0%", "to", "27.8%)", "0.0%", "(0.0%", "to", "27.8%)"] in lines
    assert ["after", "GRPO", "100.0%", "(72.2%", "to", "100.0%)", "90.0%", "(59.6%", "to", "98.2%)"] in lines
    assert ["generate", "12", "s", "1,200"] in lines
    assert ["SFT", "30", "s", "34,567"] in lines
    assert ["together", "42", "s", "1,200", "34,567"] in lines


def test_page_picture_and_data_are_written_and_say_the_same(tmp_path: Path) -> None:
    files = report.write(outcome(tmp_path))
    cells = Cells()
    cells.feed(files.page.read_text("utf-8"))
    assert {"after SFT", "70.0%", "34,567"} <= set(cells.found)
    assert "<svg" in files.page.read_text("utf-8")
    assert files.curve.read_text().startswith("<svg ")
    data = json.loads(files.data.read_text("utf-8"))
    assert data["policies"]["after SFT"]["sampled"]["mean"] == 0.7
    assert data["curve"][1] == {"step": 2, "reward": 0.75, "signal": 0.5}
    assert data["seconds"] == 42.0


def test_names_cannot_write_html(tmp_path: Path) -> None:
    page = report.html(outcome(tmp_path, "<script>alert(1)</script>"))
    assert "<script>" not in page


def test_the_next_commands_exist(tmp_path: Path) -> None:
    lines = report.next_commands(outcome(tmp_path)).splitlines()
    named = [line.split()[1] for line in lines]
    assert all(name in COMMANDS or name == "-q" for name in named), named
