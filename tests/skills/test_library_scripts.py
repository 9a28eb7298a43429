"""The scripts that come with bundled skills do what their skills say. Loopback only."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from urllib.parse import parse_qs, urlsplit

import pytest

from hermes.skills.catalogue import LIBRARY

ARXIV_SCRIPT = LIBRARY / "research" / "arxiv" / "scripts" / "arxiv_search.py"


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def entry(identifier: str, title: str, extra: str = "") -> str:
    return f"""<entry>
    <id>http://arxiv.org/abs/{identifier}</id>
    <updated>2023-06-02T10:00:00Z</updated><published>2023-05-31T17:24:00Z</published>
    <title>{title}</title>
    <summary>  First line
  of the abstract. </summary>
    <author><name>Zoë Müller-Lüdenscheidt</name></author><author><name>Ada B. Cole</name></author>
    <arxiv:primary_category xmlns:arxiv="http://arxiv.org/schemas/atom" term="cs.LG"/>
    <category term="cs.LG" scheme="http://arxiv.org/schemas/atom"/>
    <category term="cs.AI" scheme="http://arxiv.org/schemas/atom"/>
    <link href="http://arxiv.org/abs/{identifier}" rel="alternate" type="text/html"/>
    <link title="pdf" href="http://arxiv.org/pdf/{identifier}" rel="related" type="application/pdf"/>
    {extra}</entry>"""


def feed(*entries: str, total: int | None = None) -> str:
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns="http://www.w3.org/2005/Atom"><title type="html">ArXiv Query</title>
<opensearch:totalResults xmlns:opensearch="http://a9.com/-/spec/opensearch/1.1/">{
        len(entries) if total is None else total
    }</opensearch:totalResults>{"".join(entries)}</feed>"""


REFUSAL = feed(
    """<entry><id>http://arxiv.org/api/errors#incorrect_id_format_for_x</id><title>Error</title>
    <summary>incorrect id format for x</summary></entry>"""
)
PAPER = entry("2305.20050v1", "Let us check\n  each step")


@dataclass
class FakeArxiv:
    """Answers in order; the last one again and again."""

    url: str
    answers: list[tuple[int, str]] = field(default_factory=list)
    queries: list[dict[str, str]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)


@pytest.fixture
def fake_arxiv() -> Iterator[FakeArxiv]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            fake.queries.append({key: values[0] for key, values in query.items()})
            fake.times_s.append(time.monotonic())
            status, body = fake.answers[min(len(fake.queries), len(fake.answers)) - 1]
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = FakeArxiv(f"http://127.0.0.1:{server.server_address[1]}/api/query")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


Arxiv = Callable[..., tuple[int, str, str]]


@pytest.fixture
def arxiv(fake_arxiv: FakeArxiv, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Arxiv:
    """Runs the script in this process: exit code, stdout, stderr."""
    script = load_script(ARXIV_SCRIPT)

    def run(*arguments: str, delay: str = "0") -> tuple[int, str, str]:
        places = ["--base-url", fake_arxiv.url, "--cache-dir", str(tmp_path / "cache"), "--delay", delay]
        code = script.main([*arguments, *places])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run


class TestArxiv:
    def test_a_search_is_parsed_and_kept(self, arxiv: Arxiv, fake_arxiv: FakeArxiv) -> None:
        fake_arxiv.answers = [(200, feed(PAPER, total=812))]
        code, out, _ = arxiv("search", "ti:step AND cat:cs.LG", "--json", "--max", "1")
        assert code == 0
        result = json.loads(out)
        paper = result["papers"][0]
        assert result["total"] == 812
        assert (paper["id"], paper["title"]) == ("2305.20050v1", "Let us check each step")
        assert paper["authors"] == ["Zoë Müller-Lüdenscheidt", "Ada B. Cole"]
        assert paper["abstract"] == "First line of the abstract."
        assert (paper["published"], paper["categories"]) == ("2023-05-31", ["cs.LG", "cs.AI"])
        assert paper["pdf_url"] == "https://arxiv.org/pdf/2305.20050v1"
        assert fake_arxiv.queries[0]["search_query"] == "ti:step AND cat:cs.LG"
        _, again, _ = arxiv("search", "ti:step AND cat:cs.LG", "--json", "--max", "1")
        assert again == out
        assert len(fake_arxiv.queries) == 1
        arxiv("search", "ti:step AND cat:cs.LG", "--json", "--max", "1", "--cache-hours", "0")
        assert len(fake_arxiv.queries) == 2

    def test_offline_uses_only_the_cache(self, arxiv: Arxiv, fake_arxiv: FakeArxiv) -> None:
        fake_arxiv.answers = [(200, feed(PAPER))]
        code, _, error = arxiv("get", "2305.20050", "--offline")
        assert code == 1
        assert "not in the cache" in error
        arxiv("get", "2305.20050")
        assert arxiv("get", "2305.20050", "--offline", "--cache-hours", "0")[0] == 0
        assert len(fake_arxiv.queries) == 1

    def test_pages_are_joined_and_a_paper_is_listed_once(self, arxiv: Arxiv, fake_arxiv: FakeArxiv) -> None:
        second = entry("2305.20051v2", "Another")
        fake_arxiv.answers = [(200, feed(PAPER, second, total=3)), (200, feed(second, total=3))]
        _, out, _ = arxiv("search", "all:x", "--page", "2", "--json")
        assert [paper["id"] for paper in json.loads(out)["papers"]] == ["2305.20050v1", "2305.20051v2"]
        assert [query["start"] for query in fake_arxiv.queries] == ["0", "2"]

    @pytest.mark.parametrize(
        "failure", [(429, "Rate exceeded."), (503, ""), (200, "<feed"), (200, feed(total=9))]
    )
    def test_a_passing_failure_is_tried_again(
        self, arxiv: Arxiv, fake_arxiv: FakeArxiv, failure: tuple[int, str]
    ) -> None:
        fake_arxiv.answers = [failure, (200, feed(PAPER))]
        code, out, error = arxiv("search", "all:x")
        assert code == 0
        assert "2305.20050v1" in out
        assert "next attempt" in error

    def test_it_gives_up_with_a_sentence_and_keeps_nothing(self, arxiv: Arxiv, fake_arxiv: FakeArxiv) -> None:
        fake_arxiv.answers = [(429, "Rate exceeded.")]
        code, out, error = arxiv("search", "all:x", "--retries", "2")
        assert (code, out, len(fake_arxiv.queries)) == (1, "", 3)
        assert "arXiv answered 429 (3 attempts)" in error
        assert arxiv("search", "all:x", "--offline")[0] == 1

    @pytest.mark.parametrize(
        ("status", "body", "reason"),
        [
            (200, REFUSAL, "incorrect id format"),
            (400, REFUSAL, "incorrect id format"),
            (404, "<p>no", "404"),
            (200, "<!DOCTYPE html><html></html>", "not a feed"),
            (200, "<rss/>", "not an Atom feed"),
        ],
    )
    def test_a_refusal_is_an_error_and_not_repeated(
        self, arxiv: Arxiv, fake_arxiv: FakeArxiv, status: int, body: str, reason: str
    ) -> None:
        fake_arxiv.answers = [(status, body)]
        code, out, error = arxiv("search", "all:x")
        assert (code, out, len(fake_arxiv.queries)) == (1, "", 1)
        assert reason in error

    def test_processes_share_the_rate_limit(
        self, arxiv: Arxiv, fake_arxiv: FakeArxiv, tmp_path: Path
    ) -> None:
        fake_arxiv.answers = [(200, feed(PAPER))]
        arxiv("search", "all:a", delay="0.4")
        command = [sys.executable, str(ARXIV_SCRIPT), "search", "all:b", "--base-url", fake_arxiv.url]
        places = ["--cache-dir", str(tmp_path / "cache"), "--delay", "30", "--timeout", "600"]
        process = subprocess.Popen([*command, *places])
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1.0)
            assert len(fake_arxiv.queries) == 1
        finally:
            process.kill()
            process.wait()
        arxiv("search", "all:c", delay="0.4")
        assert fake_arxiv.times_s[1] - fake_arxiv.times_s[0] >= 0.4

    def test_bibtex_quotes_the_record(self, arxiv: Arxiv, fake_arxiv: FakeArxiv) -> None:
        extra = '<arxiv:doi xmlns:arxiv="http://arxiv.org/schemas/atom">10.1/x</arxiv:doi>'
        fake_arxiv.answers = [
            (200, feed(entry("2305.20050v1", "Search &amp; learn 100% of $x_1$ in R_2", extra)))
        ]
        code, out, _ = arxiv("bibtex", "https://arxiv.org/pdf/2305.20050v1.pdf")
        assert code == 0
        assert fake_arxiv.queries[0]["id_list"] == "2305.20050v1"
        assert out.startswith("@misc{mullerludenscheidt2023search,")
        assert r"title         = {{Search \& learn 100\% of $x_1$ in R\_2}}," in out
        assert "doi           = {10.1/x}," in out

    def test_unknown_and_wrong_ids_are_errors(self, arxiv: Arxiv, fake_arxiv: FakeArxiv) -> None:
        fake_arxiv.answers = [(200, feed(PAPER))]
        code, _, error = arxiv("get", "2305.20050", "2305.99999")
        assert code == 1
        assert "no paper 2305.99999" in error
        code, _, error = arxiv("get", "attention is all you need")
        assert code == 1
        assert "is no arXiv id" in error
        assert len(fake_arxiv.queries) == 1

    def test_dates_limit_the_query(self, arxiv: Arxiv, fake_arxiv: FakeArxiv) -> None:
        fake_arxiv.answers = [(200, feed(PAPER))]
        arxiv("search", "a OR b", "--since", "2026-01-01", "--until", "2026-06-30", "--sort", "submitted")
        query = fake_arxiv.queries[0]
        assert query["search_query"] == "(a OR b) AND submittedDate:[202601010000 TO 202606302359]"
        assert query["sortBy"] == "submittedDate"
        assert arxiv("search", "a", "--since", "yesterday")[0] == 1


def run_script(path: Path, *arguments: str, stdin: str = "", cwd: Path) -> tuple[int, str, str]:
    command = [sys.executable, str(path), *arguments]
    process = subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=cwd, timeout=600)
    return process.returncode, process.stdout, process.stderr


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


FIGURE_SCRIPT = LIBRARY / "research" / "research-paper-writing" / "scripts" / "metrics_figure.py"
TEMPLATES = LIBRARY / "research" / "research-paper-writing" / "templates"


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

    @pytest.mark.slow
    def test_the_paper_compiles_with_the_figure(self, seeds: str, tmp_path: Path) -> None:
        if not shutil.which("pdflatex") or not shutil.which("bibtex"):
            pytest.skip("pdflatex and bibtex are not installed (Debian: texlive-latex-recommended)")
        for template in TEMPLATES.iterdir():
            shutil.copy(template, tmp_path)
        arguments = [seeds, "--metric", "reward/mean", "--output", str(tmp_path / "reward.tex")]
        assert load_script(FIGURE_SCRIPT).main(arguments) == 0
        latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
        for command in (latex, ["bibtex", "main"], latex, latex):
            process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
            assert process.returncode == 0, process.stdout[-2000:]
        log = (tmp_path / "main.log").read_text(errors="replace")
        assert "undefined" not in log
        assert "Overfull" not in log
        assert (tmp_path / "main.pdf").read_bytes().startswith(b"%PDF")


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
