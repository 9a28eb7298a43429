"""`hermes paper`: what is filled from the record, and which numbers have no source."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from hermes.errors import HermesError, UsageError
from hermes.paper.bibliography import bibtex_file, find_references
from hermes.paper.compile import compile_pdf, compiler
from hermes.paper.latex import escape, number
from hermes.paper.numbers import check_numbers, text_numbers
from hermes.paper.project import VENUES, PaperOptions, write_project
from hermes.paper.record import read_project_records, read_record, read_records
from hermes.training.monitor.machine_card import record_machine
from tests.cli.process import failure, hermes
from tests.fakes.arxiv import serve_arxiv
from tests.paper.conftest import WriteRun

OFFLINE = PaperOptions(offline=True)


def project(tmp_path: Path, *folders: Path, options: PaperOptions = OFFLINE) -> Path:
    paper = tmp_path / "paper"
    write_project(paper, [read_record(folder) for folder in folders], options)
    return paper


def test_tables_have_intervals_seeds_evaluations_configuration_and_compute(
    tmp_path: Path, write_run: WriteRun
) -> None:
    paper = project(tmp_path, write_run("a1b2", seed=3), write_run("c3d4", seed=4, shift=0.1))
    results = (paper / "tables/results.tex").read_text()
    # 0.35 ± 1.96 · 0.4 / √64, and the last step; the evaluations at step 0 and at the end.
    assert (
        r"\texttt{a1b2} & 3 & 5 & 0.350 [0.252, 0.448] & 0.750 [0.652, 0.848] & 0.125 $\to$ 0.719" in results
    )
    assert r"\emph{all} & 2 seeds &  &  & 0.800 $\pm$ 0.071" in results
    configuration = (paper / "tables/configuration.tex").read_text()
    assert r"\texttt{env.group\_size} & \texttt{8}" in configuration and "private" not in configuration
    assert r"\texttt{a1b2} & 0.017 & 320 & 1200 & 3400 & 5600" in (paper / "tables/compute.tex").read_text()
    assert "figures/reward.tex" in (paper / "main.tex").read_text()
    assert (paper / "figures/reward-a1b2.dat").read_text().splitlines()[:2] == ["step value", "1 0.35"]


def test_the_checklist_answers_from_the_record(tmp_path: Path, write_run: WriteRun) -> None:
    single = (project(tmp_path, write_run("a1b2")) / "checklist.tex").read_text()
    assert r"\item[Is there more than one seed?] No, according to the record." in single
    assert r"\item[Are the seeds reported?] Yes: seeds 3." in single
    assert r"\item[Did every run end by itself?] Yes: completed." in single
    assert r"\item[Is the code public?] \todo" in single


def test_the_environment_is_that_of_the_trainer_where_it_was_recorded(
    tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run("a1b2")
    unknown = project(tmp_path / "before", folder)
    assert "this paper was written" in (unknown / "tables/environment.tex").read_text()
    assert "reported?] No; Table" in (unknown / "checklist.tex").read_text()
    monkeypatch.setattr("hermes.__version__", "9.8.7")
    for _ in range(2):  # a second start on the same machine adds nothing
        record_machine(folder)
    monkeypatch.setattr("hermes.__version__", "9.8.8")
    record_machine(folder)
    assert len((folder / "machines.jsonl").read_text().splitlines()) == 2
    monkeypatch.undo()
    paper = project(tmp_path, folder)
    table = (paper / "tables/environment.tex").read_text()
    assert "the trainer ran, from the record" in table
    assert table.index("Hermes & 9.8.7") < table.index("Hermes & 9.8.8")
    assert r"reported?] Yes: Table~\ref{tab:environment}" in (paper / "checklist.tex").read_text()
    (folder / "machines.jsonl").write_text("{")
    with pytest.raises(HermesError, match=r"machines\.jsonl is damaged"):
        read_record(folder)


def test_entries_of_the_bibliography_come_from_arxiv_and_then_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    with serve_arxiv() as (url, requested):
        monkeypatch.setenv("ARXIV_API_URL", url)
        online = find_references(["2106.09685"], offline=False)
    assert requested == ["2106.09685"]
    cached, absent = find_references(["2106.09685", "1234.56789"], offline=True)
    assert [cached] == online and cached.key is not None and absent.entry is None
    text = bibtex_file([cached, absent])
    assert "LoRA: Low-Rank Adaptation" in text and "% arXiv 1234.56789 has no entry: error:" in text


def test_numbers_without_a_source_are_found_with_file_and_line(tmp_path: Path, write_run: WriteRun) -> None:
    write_run("a1b2")
    paper = project(tmp_path, tmp_path / "home/runs/a1b2")
    records = read_project_records(tmp_path / "home", paper)
    findings, count = check_numbers(paper, records)
    assert findings == [] and count > 10
    text = (paper / "main.tex").read_text()
    sentence = (
        "We reach 0.75 reward and 71.9\\,\\% on held-out tasks, not 0.83 or 93\\,\\%.\n"
        "Earlier work reports 0.61. % number: their Table 2\n"
        "See Figure~\\ref{fig:99} at $4\\times 10^{-5}$, 12.34pt wide, with 5,600 tokens and 77,777 more.\n"
    )
    (paper / "main.tex").write_text(
        text.replace(r"\section{Limitations}", sentence + r"\section{Limitations}")
    )
    findings, _ = check_numbers(paper, records)
    assert [finding.number for finding in findings] == ["0.83", "93%", "77777"]
    lines = (paper / "main.tex").read_text().splitlines()
    assert all(
        "0.83" in lines[finding.line - 1] or "77,777" in lines[finding.line - 1] for finding in findings
    )


def test_a_number_of_two_digits_needs_a_headline_figure(tmp_path: Path, write_run: WriteRun) -> None:
    folder = write_run("a1b2", steps=60)
    paper = project(tmp_path, folder)
    (paper / "main.tex").write_text("The loss was 0.0237 at step 38, and 0.33 in between.\n")
    numbers = [finding.number for finding in check_numbers(paper, [read_record(folder)])[0]]
    assert numbers == ["0.33"]  # 0.0237 is 0.9/38, the value of a step; three digits are no accident


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        (r"\cite{smith2020} in 2019", ["2019"]),
        (r"a \texttt{run-12} of gpt-4 and x2", []),
        (r"\includegraphics[width=0.5\linewidth]{a1.png}", []),
        ("% 12 in a comment", []),
        (r"95\,\% interval, 12.5\,\% more", ["12.5%"]),
        (r"1,234,567 and -0.5 and 3e-4", ["1234567", "-0.5", "3e-4"]),
    ],
)
def test_the_numbers_that_a_reader_sees(line: str, numbers: list[str]) -> None:
    assert [value for value, _ in text_numbers(line)] == numbers


def test_text_is_escaped_and_numbers_are_short() -> None:
    assert escape("a_b & 50% {x} \\ \x1b") == r"a\_b \& 50\% \{x\} \textbackslash{}  "
    assert [number(value) for value in (3.0, 0.12345, 0.00004)] == ["3", "0.123", "4.00e-05"]


def test_bad_input_is_a_sentence(tmp_path: Path, write_run: WriteRun) -> None:
    folder = write_run("a1b2")
    home = tmp_path / "home"
    assert "no run with metrics" in failure(hermes(home, "paper", "new", "--run", "zz"), 2)[0]
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").write_text("x")
    taken = hermes(home, "paper", "new", "--run", "a1b2", "--out", str(tmp_path / "used"))
    assert "is not empty" in failure(taken, 2)[0]
    with pytest.raises(UsageError, match="is not a paper"):
        read_project_records(home, tmp_path / "used")
    paper = project(tmp_path, folder)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 6, "reward/mean": 1}\n')
    with pytest.raises(HermesError, match="changed since"):
        read_project_records(home, paper)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(UsageError, match="has no step"):
        read_records(home, ["a1b2"])


def test_a_paper_without_latex_says_what_to_install(
    tmp_path: Path, write_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = project(tmp_path, write_run("a1b2"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HermesError) as caught:
        compile_pdf(paper)
    assert "no LaTeX" in caught.value.message and "texlive-pictures" in caught.value.hint


def test_the_command_writes_checks_and_prints_data(tmp_path: Path, write_run: WriteRun) -> None:
    write_run("a1b2")
    home, paper = tmp_path / "home", tmp_path / "paper"
    done = hermes(home, "paper", "new", "--run", "a1", "--out", str(paper), "--offline", "--json")
    assert "main.tex" in json.loads(done.stdout)["files"]
    assert json.loads(hermes(home, "paper", "check", str(paper), "--json").stdout)["without_source"] == []
    (paper / "main.tex").write_text("It rose by 0.4321.")
    refused = hermes(home, "paper", "check", str(paper))
    assert refused.returncode == 1 and "main.tex:1" in refused.stdout


@pytest.mark.slow
@pytest.mark.parametrize("venue", VENUES)
def test_the_paper_compiles_and_its_pages_have_the_results(
    tmp_path: Path, write_run: WriteRun, venue: str
) -> None:
    if compiler() is None or shutil.which("pdftotext") is None:
        pytest.skip("needs LaTeX (texlive-latex-recommended, texlive-pictures) and pdftotext (poppler-utils)")
    options = PaperOptions(venue, authors=("A. Müller & Co_",), offline=True)
    paper = project(tmp_path, write_run("a1b2"), write_run("c3d4", seed=4, shift=0.1), options=options)
    document = compile_pdf(paper)
    text = subprocess.run(
        ["pdftotext", "-layout", str(document), "-"], capture_output=True, text=True, check=True
    ).stdout
    assert "0.750 [0.652, 0.848]" in text and "Reproducibility checklist" in text
    assert "A. Müller & Co_" in text and "??" not in text
