"""The scripts that come with bundled skills do what their skills say. Loopback only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.skills.catalogue import LIBRARY
from tests.skills.scripts import load_script


def run_script(path: Path, *arguments: str, stdin: str = "", cwd: Path) -> tuple[int, str, str]:
    command = [sys.executable, str(path), *arguments]
    process = subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=cwd, timeout=600)
    return process.returncode, process.stdout, process.stderr


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


FIGURE_SCRIPT = LIBRARY / "research" / "research-paper-writing" / "scripts" / "metrics_figure.py"


@pytest.fixture
def seeds(tmp_path: Path) -> str:
    """Three seeds of one setting as the script's argument; the last one lacks the last step."""
    files = []
    for seed, gain in enumerate((0.0, 0.1, 0.2)):
        rows: list[dict[str, object]] = [
            {"step": step, "reward/mean": step / 10 + gain} for step in range(1, 5 - (seed == 2))
        ]
        files.append(str(write_lines(tmp_path / f"{seed}.jsonl", rows)))
    return "ours_1=" + ",".join(files)


class TestMetricsFigure:
    def test_the_interval_is_that_of_the_mean_over_seeds(
        self, seeds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = tmp_path / "reward.tex"
        assert (
            load_script(FIGURE_SCRIPT).main([seeds, "--metric", "reward/mean", "--output", str(output)]) == 0
        )
        printed = capsys.readouterr().out
        # 0.3, 0.4, 0.5 at step 3: standard error 0.1/√3, times 4.303.
        assert "ours_1: reward/mean = 0.4 ± 0.248 (95 % interval of the mean) at 3, 3 seed(s)" in printed
        picture = output.read_text()
        assert "(1,0.2) (2,0.3) (3,0.4)}" in picture
        assert r"\addlegendentry{ours\_1}" in picture
        assert "fill between" in picture

    def test_one_seed_has_no_interval(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        metrics = write_lines(tmp_path / "m.jsonl", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])
        output = tmp_path / "loss.svg"
        assert (
            load_script(FIGURE_SCRIPT).main([f"a<b={metrics}", "--metric", "loss", "--output", str(output)])
            == 0
        )
        assert "(one seed: no interval)" in capsys.readouterr().out
        assert "a&lt;b" in output.read_text()
        assert "opacity" not in output.read_text()

    def test_a_missing_metric_is_an_error_that_lists_those_there_are(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        metrics = write_lines(tmp_path / "m.jsonl", [{"step": 1, "loss": 2.0}])
        output = tmp_path / "x.tex"
        assert (
            load_script(FIGURE_SCRIPT).main([f"a={metrics}", "--metric", "los", "--output", str(output)]) == 1
        )
        assert "no metric 'los'; it has: loss, step" in capsys.readouterr().err
        assert not output.exists()


class TestCheckNumbers:
    SCRIPT = LIBRARY / "research" / "research-paper-writing" / "scripts" / "check_numbers.py"

    def test_numbers_without_a_source_are_listed_with_file_and_line(self, tmp_path: Path) -> None:
        rows: list[dict[str, object]] = [{"step": step, "train/loss": 0.9 / step} for step in range(1, 61)]
        rows[-1]["eval/success"] = 0.719
        metrics = write_lines(tmp_path / "metrics.jsonl", rows)
        config = tmp_path / "config.yaml"
        config.write_text("learning_rate: 4.0e-05\ntokens: 5600\n")
        paper = tmp_path / "paper"
        paper.mkdir()
        (paper / "main.tex").write_text(
            "We reach 71.9\\,\\% on held-out tasks at $4\\times 10^{-5}$, with 5,600 tokens.\n"
            "The loss was 0.0237 at one step, and 0.33 in between; 77,777 more.\n"
            "Earlier work reports 0.61. % number: their Table 2\n"
        )
        code, out, _ = run_script(self.SCRIPT, "paper", str(metrics), str(config), cwd=tmp_path)
        assert code == 1
        # 0.0237 is the value of a step; 0.33 is one too, but every short number is some step's.
        assert [line.split(": ")[:2] for line in out.splitlines()[:-1]] == [
            ["main.tex:2", "0.33"],
            ["main.tex:2", "77777"],
        ]
        assert out.splitlines()[-1].startswith("6 numbers")

    def test_the_numbers_that_a_reader_sees(self) -> None:
        lines = {
            r"\cite{smith2020} in 2019": ["2019"],
            r"a \texttt{run-12} of gpt-4 and x2": [],
            r"\includegraphics[width=0.5\linewidth]{a1.png}": [],
            "% 12 in a comment": [],
            r"95\,\% interval, 12.5\,\% more": ["12.5%"],
            r"1,234,567 and -0.5 and 3e-4": ["1234567", "-0.5", "3e-4"],
        }
        text_numbers = load_script(self.SCRIPT).text_numbers
        assert {line: list(text_numbers(line)) for line in lines} == lines


class TestReviewTable:
    SCRIPT = LIBRARY / "research" / "literature-review" / "scripts" / "review_table.py"
    SEARCH = json.dumps(
        {
            "total": 9,
            "papers": [
                {"id": "2305.20050v1", "title": "A|B", "authors": ["H L", "B C"], "published": "2023-05-31"}
            ],
        }
    )

    def test_decisions_are_kept_and_reported(self, tmp_path: Path) -> None:
        for query in ("first", "second"):
            code, out, _ = run_script(self.SCRIPT, "add", "--query", query, stdin=self.SEARCH, cwd=tmp_path)
            assert code == 0
        assert out == "1 of 9 read, 0 new, 1 in the review\n"
        run_script(self.SCRIPT, "decide", "2305.20050", "include", "--claim", "50 % & more", cwd=tmp_path)
        _, counts, _ = run_script(self.SCRIPT, "report", cwd=tmp_path)
        assert "include: 1" in counts
        assert "   1    0  first" in counts
        _, table, _ = run_script(self.SCRIPT, "report", "--form", "markdown", cwd=tmp_path)
        assert "| L et al., 2023 | A\\|B | 50 % & more |" in table
        _, latex, _ = run_script(self.SCRIPT, "report", "--form", "latex", cwd=tmp_path)
        assert r"50 \% \& more" in latex

    def test_an_exclusion_needs_a_reason(self, tmp_path: Path) -> None:
        run_script(self.SCRIPT, "add", "--query", "q", stdin=self.SEARCH, cwd=tmp_path)
        code, _, error = run_script(self.SCRIPT, "decide", "2305.20050", "exclude", cwd=tmp_path)
        assert code == 1
        assert "needs --reason" in error

    def test_earlier_reviews_are_found_and_compared_with_a_draft(self, tmp_path: Path) -> None:
        papers = [
            {"id": f"2305.2005{n}v1", "title": title, "authors": [], "published": "2023-05-31"}
            for n, title in enumerate(("Steps", "Answers", "Games"))
        ]
        record = tmp_path / "reviews" / "rewards.jsonl"
        record.parent.mkdir()
        (tmp_path / "reviews" / "other.jsonl").write_text('{"id": 1}\nno JSON\n')
        file, search = ("--file", str(record)), json.dumps({"total": 3, "papers": papers})
        run_script(self.SCRIPT, *file, "add", "--query", "q", stdin=search, cwd=tmp_path)
        decide = (*file, "decide")
        run_script(self.SCRIPT, *decide, "2305.20050", "include", "--claim", "beats answers", cwd=tmp_path)
        run_script(self.SCRIPT, *decide, "2305.20051", "exclude", "--reason", "one seed", cwd=tmp_path)
        run_script(self.SCRIPT, *decide, "2305.20052", "include", cwd=tmp_path)
        _, every, _ = run_script(self.SCRIPT, "find", cwd=tmp_path)
        assert every == "reviews/rewards.jsonl: 3 papers, 2 included\n"
        _, two, _ = run_script(self.SCRIPT, "find", "ANSWERS", cwd=tmp_path)
        assert two.splitlines()[1:] == [
            "  2305.20050  include  Steps: beats answers",
            "  2305.20051  exclude  Answers: one seed",
        ]
        (tmp_path / "draft.tex").write_text(
            r"Steps help \citep[see][]{cobbe2021, 2305.20051}, \cite{lightman}."
        )
        (tmp_path / "refs.bib").write_text("@misc{lightman,\n  eprint = {2305.20050},\n}\n")
        drafts = ("cited", "draft.tex", "refs.bib")
        code, out, _ = run_script(self.SCRIPT, *file, *drafts, cwd=tmp_path)
        assert (code, out.splitlines()) == (
            1,
            [
                "cited and included: 1",
                "cited and not in the record: cobbe2021",
                "cited and not included: 2305.20051",
                "included and not cited: 2305.20052",
            ],
        )
        (tmp_path / "draft.tex").write_text(r"\cite{lightman} and \citet{2305.20052}")
        assert run_script(self.SCRIPT, *file, *drafts, cwd=tmp_path)[0] == 0


class TestCompareSamples:
    SCRIPT = LIBRARY / "mlops" / "lm-evaluation-harness" / "scripts" / "compare_samples.py"

    def samples(self, path: Path, scores: list[float], filter_name: str = "number") -> str:
        rows: list[dict[str, object]] = [
            {"doc_id": index, "doc_hash": f"h{index}", "filter": filter_name, "exact_match": score}
            for index, score in enumerate(scores)
        ]
        return str(write_lines(path, rows))

    def test_pairs_are_compared_by_their_content(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first = self.samples(tmp_path / "a.jsonl", [0, 0, 0, 0, 1, 1, 1])
        second = self.samples(tmp_path / "b.jsonl", [1, 1, 1, 1, 1, 1])
        assert load_script(self.SCRIPT).main([first, second]) == 0
        out = capsys.readouterr().out
        assert "samples: 6 in both; 1 only in A, 0 only in B" in out
        assert "only B solved 4, only A solved 0; sign test p = 0.1250" in out

    def test_other_tasks_are_not_compared(self, tmp_path: Path) -> None:
        first = self.samples(tmp_path / "a.jsonl", [1.0])
        with pytest.raises(SystemExit, match="no samples with the filter 'strict'"):
            load_script(self.SCRIPT).main([first, first, "--filter", "strict"])


class TestCheckRows:
    SCRIPT = LIBRARY / "mlops" / "trajectory-curation" / "scripts" / "check_rows.py"

    def check(self, path: Path, conversations: list[list[tuple[str, str]]]) -> int:
        rows: list[dict[str, object]] = [
            {"conversations": [{"from": role, "value": text} for role, text in turns]}
            for turns in conversations
        ]
        return int(load_script(self.SCRIPT).main([str(write_lines(path, rows))]))

    def test_good_rows_pass(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        turns = [("human", "a"), ("gpt", "call"), ("tool", "1"), ("tool", "2"), ("gpt", "done")]
        assert self.check(tmp_path / "x.jsonl", [turns]) == 0
        assert "rows: 1, different first prompts: 1" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("turns", "problem"),
        [
            ([("human", "a"), ("tool", "b")], "ends with tool, not with the model"),
            ([("human", "a"), ("human", "b"), ("gpt", "c")], "has two turns of human in a row"),
            ([("human", "a"), ("gpt", " ")], "ends with an empty answer"),
            ([], "has no conversations"),
        ],
    )
    def test_bad_rows_fail(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], turns: list[tuple[str, str]], problem: str
    ) -> None:
        assert self.check(tmp_path / "x.jsonl", [turns]) == 1
        assert f"x.jsonl:1: {problem}" in capsys.readouterr().err

    def test_the_same_conversation_twice_fails(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        turns = [("human", "a"), ("gpt", "b")]
        assert self.check(tmp_path / "x.jsonl", [turns, turns]) == 1
        assert "the same conversation as line 1" in capsys.readouterr().err


CONVERTERS = [
    LIBRARY / "mlops" / "weights-and-biases" / "scripts" / "metrics_to_wandb.py",
    LIBRARY / "mlops" / "trackio" / "scripts" / "metrics_to_trackio.py",
    LIBRARY / "mlops" / "tensorboard" / "scripts" / "metrics_to_tensorboard.py",
]


@pytest.mark.parametrize("path", CONVERTERS, ids=lambda path: path.stem)
def test_converters_read_metrics_and_name_a_bad_line(path: Path, tmp_path: Path) -> None:
    script = load_script(path)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1, "time_s": 5.0, "loss": 2, "bad": NaN, "note": "x"}\n')
    assert list(script.read_steps(metrics)) == [(1, 5.0, {"loss": 2.0})]
    metrics.write_text('{"loss": 2}\n')
    with pytest.raises(SystemExit, match=r"metrics\.jsonl:1 is no step of a run"):
        list(script.read_steps(metrics))
