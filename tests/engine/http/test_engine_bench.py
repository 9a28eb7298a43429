"""`hermes engine bench` on a tiny model: every figure is there, and both sides did the work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.process import hermes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
HERE = ("--device", "cpu", "--dtype", "float32")


def test_the_report_names_every_figure_of_both_sides(tiny_folder: Path, tmp_path: Path) -> None:
    done = hermes(tmp_path, "engine", "bench", "--model", str(tiny_folder), *HERE, "--json", timeout_s=300)
    report = json.loads(done.stdout)
    ours = {figure["what"]: figure["per_s"] for figure in report["engine"]}
    theirs = {figure["what"]: figure["per_s"] for figure in report["transformers"]}
    assert set(theirs) == {"generate", "generate at batch 1", "train, padded", "GRPO step of two turns"}
    assert set(ours) == {
        "generate",
        "generate at batch 1",
        "train",
        "train, prompt shared",
        "GRPO step of two turns",
    }
    assert min(*ours.values(), *theirs.values()) > 0
    assert report["dtype"] == "float32" and report["left_out"] == ""
    peaks = [figure["peak_gib"] for side in ("engine", "transformers") for figure in report[side]]
    assert min(peaks) > 0.1, "the resident memory of a process with torch in it"


def test_without_a_baseline_there_is_nothing_to_compare_with(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = ("engine", "bench", "--model", str(tiny_folder), *HERE, "--no-baseline")
    title, header, *rows, note = hermes(tmp_path, *arguments, timeout_s=300).stdout.strip().split("\n")
    assert title.startswith(f"{tiny_folder} in float32 on cpu")
    assert header.startswith("ENGINE PER S", len(header) - len(header.lstrip()))
    assert len(rows) == 5 and note == "Peak GiB: resident memory of the process."
