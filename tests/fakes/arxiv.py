"""arXiv's API on the loopback interface: recorded answers to requests for papers by their ids."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_FEED = """<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns="http://www.w3.org/2005/Atom" xmlns:opensearch="http://a9.com/-/spec/opensearch/1.1/"
      xmlns:arxiv="http://arxiv.org/schemas/atom">
  <opensearch:totalResults>{count}</opensearch:totalResults>
  <opensearch:startIndex>0</opensearch:startIndex>
  <opensearch:itemsPerPage>{count}</opensearch:itemsPerPage>
  {entries}
</feed>
"""
_RECORDED = {
    "2106.09685": """<entry>
    <id>http://arxiv.org/abs/2106.09685v2</id>
    <title>LoRA: Low-Rank Adaptation of Large Language Models</title>
    <summary>We freeze the weights.</summary>
    <published>2021-06-17T17:37:18Z</published>
    <updated>2021-10-16T18:40:34Z</updated>
    <author><name>Edward J. Hu</name></author>
    <author><name>Yelong Shen</name></author>
    <arxiv:primary_category term="cs.CL"/>
    <category term="cs.CL"/>
    <link href="http://arxiv.org/abs/2106.09685v2" rel="alternate" type="text/html"/>
  </entry>""",
    "2402.03300": """<entry>
    <id>http://arxiv.org/abs/2402.03300v3</id>
    <title>DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models</title>
    <summary>We introduce Group Relative Policy Optimization.</summary>
    <published>2024-02-05T18:55:32Z</published>
    <updated>2024-04-27T15:25:53Z</updated>
    <author><name>Zhihong Shao</name></author>
    <author><name>Peiyi Wang</name></author>
    <arxiv:primary_category term="cs.CL"/>
    <category term="cs.CL"/>
    <link href="http://arxiv.org/abs/2402.03300v3" rel="alternate" type="text/html"/>
  </entry>""",
}
"""Id → the entry of the feed, with the authors and the abstract cut short."""


@contextmanager
def serve_arxiv() -> Iterator[tuple[str, list[str]]]:
    """The address of the server, and the ids that were requested, in order. Unknown ids have no entry."""
    requested: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ids = parse_qs(urlsplit(self.path).query)["id_list"][0].split(",")
            requested.extend(ids)
            entries = [_RECORDED[identifier] for identifier in ids if identifier in _RECORDED]
            self.send_response(200)
            self.send_header("content-type", "application/atom+xml")
            self.end_headers()
            self.wfile.write(_FEED.format(count=len(entries), entries="".join(entries)).encode())

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
