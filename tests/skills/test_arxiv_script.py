"""The script of the arxiv skill against a server on the loopback interface, in the form of arXiv itself."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from hermes.skills.catalogue import LIBRARY
from tests.skills.scripts import load_script

ARXIV_SCRIPT = LIBRARY / "research" / "arxiv" / "scripts" / "arxiv_search.py"


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


def refusal(identifier: str, reason: str) -> str:
    """An error of arXiv's: a feed whose only entry looks like a paper by "arXiv api core"."""
    return feed(
        f"""<entry><id>{identifier}</id><title>Error</title>
    <updated>2026-09-29T13:53:06Z</updated><link href="{identifier}" rel="alternate" type="text/html"/>
    <summary>{reason}</summary><author><name>arXiv api core</name></author></entry>"""
    )


REFUSAL = refusal("https://arxiv.org/api/errors#incorrect_id_format_for_x", "incorrect id format for x")
SORT_REFUSAL = refusal("https://arxiv.org/help/api/user-manual#sort", "sortBy must be in: relevance")
# The order, the attributes and the places of namespaces of arXiv's answers in September 2026: `published`
# and the categories before the authors, affiliations in an author, `https` in links and `http` in ids.
CURRENT_FORM = """<?xml version='1.0' encoding='UTF-8'?>
<feed xmlns:opensearch="http://a9.com/-/spec/opensearch/1.1/" xmlns:arxiv="http://arxiv.org/schemas/atom" \
xmlns="http://www.w3.org/2005/Atom">
  <id>https://arxiv.org/api/Zm9yIGEgdGVzdA</id>
  <title>arXiv Query: search_query=&amp;id_list=quant-ph/0512001,2305.20050&amp;start=0</title>
  <updated>2026-09-30T08:00:00Z</updated>
  <link href="https://arxiv.org/api/query?search_query=&amp;start=0&amp;max_results=2" \
type="application/atom+xml"/>
  <opensearch:itemsPerPage>2</opensearch:itemsPerPage>
  <opensearch:totalResults>2</opensearch:totalResults>
  <opensearch:startIndex>0</opensearch:startIndex>
  <entry>
    <id>http://arxiv.org/abs/quant-ph/0512001v3</id>
    <title>A title that is broken
  over two lines</title>
    <updated>2006-02-03T04:05:06Z</updated>
    <link href="https://arxiv.org/abs/quant-ph/0512001v3" rel="alternate" type="text/html"/>
    <link href="https://arxiv.org/pdf/quant-ph/0512001v3" rel="related" type="application/pdf" title="pdf"/>
    <summary>  Widths W &gt; 0.3 &amp; a mean &lt;f&gt; of 0.6.</summary>
    <category term="quant-ph" scheme="http://arxiv.org/schemas/atom"/>
    <category term="hep-th" scheme="http://arxiv.org/schemas/atom"/>
    <published>2005-12-01T00:00:09Z</published>
    <arxiv:comment>6 pages</arxiv:comment>
    <arxiv:primary_category term="quant-ph"/>
    <arxiv:journal_ref>J.Test.C31:17-29,2006</arxiv:journal_ref>
    <author>
      <name> The Collaboration</name>
    </author>
    <author>
      <name>R. A. Moss</name>
      <arxiv:affiliation>First</arxiv:affiliation>
      <arxiv:affiliation>Second</arxiv:affiliation>
    </author>
    <arxiv:doi>10.1000/test-x</arxiv:doi>
    <link rel="related" href="https://doi.org/10.1000/test-x" title="doi"/>
  </entry>
  <entry>
    <id>http://arxiv.org/abs/2305.20050v1</id>
    <title>Another</title>
    <updated>2023-05-31T17:24:00Z</updated>
    <link href="https://arxiv.org/abs/2305.20050v1" rel="alternate" type="text/html"/>
    <link href="https://arxiv.org/pdf/2305.20050v1" rel="related" type="application/pdf" title="pdf"/>
    <summary>Short.</summary>
    <category term="cs.LG" scheme="http://arxiv.org/schemas/atom"/>
    <published>2023-05-31T17:24:00Z</published>
    <arxiv:primary_category term="cs.LG"/>
    <author>
      <name>Ada B. Cole</name>
    </author>
  </entry>
</feed>
"""
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

    def test_the_form_of_todays_server_is_read_whole(self, arxiv: Arxiv, fake_arxiv: FakeArxiv) -> None:
        fake_arxiv.answers = [(200, CURRENT_FORM)]
        code, out, _ = arxiv("get", "quant-ph/0512001", "2305.20050", "--json")
        assert code == 0
        first, second = json.loads(out)["papers"]
        assert first == {
            "id": "quant-ph/0512001v3",
            "title": "A title that is broken over two lines",
            "authors": ["The Collaboration", "R. A. Moss"],
            "abstract": "Widths W > 0.3 & a mean <f> of 0.6.",
            "published": "2005-12-01",
            "updated": "2006-02-03",
            "primary_category": "quant-ph",
            "categories": ["quant-ph", "hep-th"],
            "comment": "6 pages",
            "journal_ref": "J.Test.C31:17-29,2006",
            "doi": "10.1000/test-x",
            "abs_url": "https://arxiv.org/abs/quant-ph/0512001v3",
            "pdf_url": "https://arxiv.org/pdf/quant-ph/0512001v3",
        }
        assert (second["id"], second["doi"], second["comment"]) == ("2305.20050v1", "", "")

    def test_the_reason_in_a_servers_error_is_shown(self, arxiv: Arxiv, fake_arxiv: FakeArxiv) -> None:
        fake_arxiv.answers = [(500, refusal("https://arxiv.org/api/errors", "a bound is missing"))]
        code, _, error = arxiv("search", "submittedDate:[202201010000 TO *]", "--retries", "1")
        assert (code, len(fake_arxiv.queries)) == (1, 2)
        assert "arXiv answered 500 (arXiv refused the query: a bound is missing) (2 attempts)" in error

    def test_a_paper_with_the_title_error_is_a_paper(self, arxiv: Arxiv, fake_arxiv: FakeArxiv) -> None:
        fake_arxiv.answers = [(200, feed(entry("2305.20050v1", "Error")))]
        assert arxiv("search", "ti:error")[0] == 0

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
            (200, SORT_REFUSAL, "refused the query: sortBy must be in"),
            (400, SORT_REFUSAL, "refused the query: sortBy must be in"),
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
