"""`hermes engine bench` on a tiny model, and the same work done by transformers and PEFT."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.process import hermes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
BASELINE = Path(__file__).parents[3] / "bench" / "engine_baseline.py"
FIGURES = {"generate", "generate at batch 1", "train", "train, prompt shared", "GRPO step of two turns"}


def test_the_baseline_reports_every_figure_of_both_sides(tiny_folder: Path) -> None:
    command = [sys.executable, str(BASELINE), str(tiny_folder), "--device", "cpu", "--dtype", "float32"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)
    ours = {figure["what"]: figure["per_s"] for figure in report["engine"]}
    theirs = {figure["what"]: figure["per_s"] for figure in report["transformers"]}
    assert set(theirs) == {"generate", "generate at batch 1", "train, padded", "GRPO step of two turns"}
    assert set(ours) == FIGURES
    assert min(*ours.values(), *theirs.values()) > 0
    assert report["dtype"] == "float32"
    peaks = [figure["peak_gib"] for side in ("engine", "transformers") for figure in report[side]]
    assert min(peaks) > 0.1, "the resident memory of a process with torch in it"


def test_the_command_prints_a_row_for_each_figure(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = ("engine", "bench", "--model", str(tiny_folder), "--device", "cpu", "--dtype", "float32")
    title, header, *rows, note = hermes(tmp_path, *arguments, timeout_s=300).stdout.strip().split("\n")
    assert title.startswith(f"{tiny_folder} in float32 on cpu")
    assert header.split() == ["PER", "S", "PEAK", "GIB"]
    assert len(rows) == len(FIGURES) and note == "Peak GiB: resident memory of the process."
