"""The paper of a run that was trained: it compiles, and its numbers are in the record."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.paper.compile import compiler
from hermes.rl.run import RlRun
from tests.fakes.arxiv import serve_arxiv
from tests.rl.test_runs import how_it_ended, start_run
from tests.rl.world import hermes, kill_runs, make_home, tiny_model


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RlRun]:
    home = make_home(tmp_path / "home", tiny_model(tmp_path / "model"), total_steps=6, steps_per_eval=3)
    try:
        trained = start_run(home)
        assert how_it_ended(trained, 600) == "completed: None"
        yield trained
    finally:
        kill_runs(home)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_paper_of_a_trained_run_compiles_and_its_numbers_are_in_the_record(
    run: RlRun, tmp_path: Path
) -> None:
    if compiler() is None or shutil.which("pdftotext") is None:
        pytest.skip("needs LaTeX (texlive-latex-recommended, texlive-pictures) and pdftotext (poppler-utils)")
    home, paper = run.home, tmp_path / "paper"
    with serve_arxiv() as (url, requested):
        options = ("--run", run.run_id, "--out", str(paper), "--pdf", "--json")
        written = hermes(home, "paper", "new", *options, env={"ARXIV_API_URL": url}, timeout_s=600)
    assert written.returncode == 0, written.stderr
    assert requested[0] == "2106.09685"
    checked = hermes(home, "paper", "check", str(paper), "--json")
    assert checked.returncode == 0, checked.stdout
    assert json.loads(checked.stdout)["numbers"] > 20
    document = json.loads(written.stdout)["pdf"]
    text = subprocess.run(
        ["pdftotext", "-layout", document, "-"], capture_output=True, text=True, check=True
    ).stdout
    assert "LoRA" in text and "DeepSeekMath" in text, "the bibliography is printed"
    assert run.run_id in text and "Environment in which the trainer ran" in text
    assert "Mean reward by training step" in text and "??" not in text
