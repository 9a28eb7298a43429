"""arXiv's API on the loopback interface: papers by their ids, in the form of its answers in 2026."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_FEED = """<?xml version='1.0' encoding='UTF-8'?>
<feed xmlns:opensearch="http://a9.com/-/spec/opensearch/1.1/" xmlns:arxiv="http://arxiv.org/schemas/atom" \
xmlns="http://www.w3.org/2005/Atom">
  <id>https://arxiv.org/api/Zm9yIGEgdGVzdA</id>
  <title>arXiv Query: search_query=&amp;id_list={ids}</title>
  <updated>2026-09-30T08:00:00Z</updated>
  <opensearch:itemsPerPage>{count}</opensearch:itemsPerPage>
  <opensearch:totalResults>{count}</opensearch:totalResults>
  <opensearch:startIndex>0</opensearch:startIndex>
{entries}</feed>
"""
_ENTRY = """  <entry>
    <id>http://arxiv.org/abs/{id}</id>
    <title>{title}</title>
    <updated>{updated}</updated>
    <link href="https://arxiv.org/abs/{id}" rel="alternate" type="text/html"/>
    <link href="https://arxiv.org/pdf/{id}" rel="related" type="application/pdf" title="pdf"/>
    <summary>{summary}</summary>
    <category term="cs.CL" scheme="http://arxiv.org/schemas/atom"/>
    <published>{published}</published>
    <arxiv:primary_category term="cs.CL"/>
    <author>
      <name>{first}</name>
    </author>
    <author>
      <name>{second}</name>
    </author>
  </entry>
"""
_PAPERS = {
    "2106.09685": {
        "id": "2106.09685v2",
        "title": "LoRA: Low-Rank Adaptation of Large Language Models",
        "summary": "We freeze the weights.",
        "published": "2021-06-17T17:37:18Z",
        "updated": "2021-10-16T18:40:34Z",
        "first": "Edward J. Hu",
        "second": "Yelong Shen",
    },
    "2402.03300": {
        "id": "2402.03300v3",
        "title": "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
        "summary": "We introduce Group Relative Policy Optimization.",
        "published": "2024-02-05T18:55:32Z",
        "updated": "2024-04-27T15:25:53Z",
        "first": "Zhihong Shao",
        "second": "Peiyi Wang",
    },
}
"""Id → fields of the entry, with the authors and the abstract cut short."""


@contextmanager
def serve_arxiv() -> Iterator[tuple[str, list[str]]]:
    """The address of the server, and the ids that were requested, in order. Unknown ids have no entry."""
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ids = parse_qs(urlsplit(self.path).query)["id_list"][0].split(",")
            requested.extend(ids)
            entries = [_ENTRY.format(**_PAPERS[identifier]) for identifier in ids if identifier in _PAPERS]
            self.send_response(200)
            self.send_header("content-type", "application/atom+xml")
            self.end_headers()
            feed = _FEED.format(ids=",".join(ids), count=len(entries), entries="".join(entries))
            self.wfile.write(feed.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/api/query", requested
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
