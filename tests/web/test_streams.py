"""Many open live pages: they share what they look at, and the server goes on answering."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from hermes.web.caches import TimedValue
from hermes.web.live import MAX_STREAMS
from tests.waiting import wait_until
from tests.web.site import WebSite, open_site


def open_stream(site: WebSite, path: str = "/runs/events") -> socket.socket:
    """A connection whose reply has begun."""
    address = urlsplit(site.url)
    connection = socket.create_connection((address.hostname or "", address.port or 0), timeout=60)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode())
    assert connection.recv(12) in (b"HTTP/1.1 200", b"HTTP/1.1 503")
    return connection


def test_no_number_of_live_pages_stops_the_server(tmp_path: Path) -> None:
    with open_site(tmp_path) as site, ExitStack() as stack:
        for _ in range(MAX_STREAMS):
            stack.enter_context(open_stream(site))
        wait_until(lambda: site.get("/runs/events").status == 503)
        assert "live pages are open" in site.get("/runs/events").text
        for path in ("/", "/runs", "/trajectories", "/rate"):
            assert site.get(path).status == 200
        stack.close()
        with open_stream(site) as connection:  # those that were closed make room

            def answered() -> bool:
                with open_stream(site) as again:
                    return again.recv(3) == b" OK"

            wait_until(answered)
            assert connection.fileno() > 0


def test_a_shared_value_is_computed_by_one_thread_and_the_others_do_not_wait() -> None:
    value: TimedValue[int] = TimedValue(period_s=0.0)
    assert value.get(lambda: 1) == 1
    computing, finish = threading.Event(), threading.Event()

    def slow() -> int:
        computing.set()
        finish.wait(30)
        return 2

    thread = threading.Thread(target=value.get, args=(slow,))
    thread.start()
    computing.wait(30)
    assert value.get(lambda: 3) == 1  # what was there before
    finish.set()
    thread.join()
    wait_until(lambda: value.get(lambda: 4) == 4)
    fresh: TimedValue[int] = TimedValue(period_s=1000.0)
    assert [fresh.get(lambda: 5), fresh.get(lambda: 6)] == [5, 5]
