"""What reaches a server before its application: other users, endless heads, half requests, bombs."""

from __future__ import annotations

import gzip
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes.rl.supervise.plan import RunPlan
from hermes.rollouts.compression import BadGzip, TooLarge, inflate
from hermes.serving import HttpSettings, Listener, listen, serve_in_thread
from hermes.serving.peers import owner_of
from hermes.serving.protocol import MAX_HEAD_BYTES, LimitedHttpProtocol
from tests.rl.plans import planned_run as rl_run
from tests.security.other_user import as_other_user, as_root, linux


class Impatient(LimitedHttpProtocol):
    head_timeout_s = 0.3
    body_timeout_s = 0.3


async def app(scope, receive, send):  # type: ignore[no-untyped-def]
    """Reads the whole body and answers with its size."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": str(size).encode()})


@contextmanager
def server(protocol: type[LimitedHttpProtocol] | None = None) -> Iterator[Listener]:
    settings = HttpSettings(http=protocol)
    with listen("127.0.0.1", 0) as listener, serve_in_thread(app, listener, settings):
        yield listener


def exchange(listener: Listener, data: bytes, *, end: bool = False) -> bytes:
    """What the server answers until it closes the connection."""
    with socket.create_connection(listener.socket.getsockname(), timeout=30) as client:
        try:
            client.sendall(data)
            if end:
                client.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has answered and closed
        answer = b""
        try:
            while chunk := client.recv(65536):
                answer += chunk
        except ConnectionResetError:
            pass
        return answer


def test_a_head_without_end_is_refused_and_not_kept() -> None:
    with server() as listener:
        for head in (
            b"GET / HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * (4 << 20),
            b"GET /" + b"x" * (4 << 20),
            b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"".join(b"h%d: y\r\n" % n for n in range(400_000)),
        ):
            assert exchange(listener, head)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")  # or a reset
        with urllib.request.urlopen(listener.url, timeout=10) as answer:
            assert answer.read() == b"0"


def test_the_connection_of_a_long_head_is_closed_after_little_of_it() -> None:
    with server() as listener, socket.create_connection(listener.socket.getsockname(), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\na: ")
        sent = 0
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while sent < 200 << 20:
                sent += client.send(b"x" * 65536)
        assert sent < 64 << 20  # what the kernel's buffers hold, not what was offered


def test_a_head_of_ordinary_size_passes() -> None:
    with server() as listener:
        request = b"POST / HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * (MAX_HEAD_BYTES // 2)
        answer = exchange(listener, request + b"\r\ncontent-length: 3\r\n\r\nabc")
        assert answer.startswith(b"HTTP/1.1 200") and b"\r\n3\r\n" in answer


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"GET",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nabc",
    ],
)
def test_half_a_request_is_cut(half: bytes) -> None:
    with server(Impatient) as listener:
        assert exchange(listener, half).startswith(b"HTTP/1.1 408")


class Patient(LimitedHttpProtocol):
    body_timeout_s = 5.0


def test_a_slow_body_that_keeps_arriving_is_not_cut() -> None:
    """Each part comes long before the limit, also on a slow machine; together they take longer than it."""
    with (
        server(Patient) as listener,
        socket.create_connection(listener.socket.getsockname()) as client,
    ):
        client.sendall(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8\r\n\r\n")
        for _ in range(8):
            time.sleep(0.7)
            client.sendall(b"x")
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_empty_gzip_members_cost_no_time_and_many_are_refused() -> None:
    empty = gzip.compress(b"")
    assert inflate(empty * 5_000 + gzip.compress(b"end"), 100) == b"end"
    with pytest.raises(BadGzip, match="members"):
        inflate(empty * 100_000, 1 << 20)


def test_gzip_streams_of_several_members_are_read_as_before() -> None:
    data = os.urandom(300_000)
    parts = b"".join(gzip.compress(data[start : start + 7_000]) for start in range(0, len(data), 7_000))
    assert inflate(parts, len(data)) == data
    assert inflate(parts + b"\0" * 70_000, len(data)) == data
    with pytest.raises(TooLarge):
        inflate(parts, len(data) - 1)
    with pytest.raises(BadGzip):
        inflate(parts[:-5], len(data))
    with pytest.raises(BadGzip):
        inflate(parts + b"no gzip", len(data))


@linux
def test_the_owner_of_a_connection_is_known_until_it_is_closed() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.create_server((host, 0), family=family)
        except OSError:
            continue  # no IPv6 here
        with listener, socket.create_connection(listener.getsockname()[:2]) as client:
            ends = client.getsockname()[:2], client.getpeername()[:2]
            assert owner_of(*ends) == os.geteuid()
            client.close()
            assert owner_of(*ends) is None


@linux
@as_root
def test_another_user_of_the_machine_is_refused() -> None:
    with server() as listener:
        assert "403 Forbidden" in as_other_user(listener.url)
        with urllib.request.urlopen(listener.url, timeout=10) as answer:
            assert answer.status == 200
    with listen("127.0.0.1", 0, any_user=True) as listener, serve_in_thread(app, listener):
        assert "200 OK" in as_other_user(listener.url)


@contextmanager
def trajectory_api(tmp_path: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of `hermes api` as a process of its own, and the process."""
    environ = {**os.environ, "HERMES_HOME": str(tmp_path / "home"), "HERMES_API_TOKEN": ""}
    folder = str(tmp_path / "new" / "state")
    command = [sys.executable, "-m", "hermes", "api", "--port", "0", "--state-dir", folder, *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        announced = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert announced
        yield announced[0], process
        process.terminate()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[str]:
    with trajectory_api(tmp_path) as (url, _):
        yield url


def test_a_server_without_a_token_says_what_it_gives_up(tmp_path: Path) -> None:
    with trajectory_api(tmp_path, "--no-token") as (url, process):
        assert process.stderr is not None
        assert "every user of this machine can read, score and reset the run" in process.stderr.readline()
        assert status_of(f"{url}/status") == 200
        if os.geteuid() == 0 and sys.platform == "linux":
            assert "403 Forbidden" not in as_other_user(url)


def status_of(url: str, method: str = "GET", **headers: str) -> int:
    request = urllib.request.Request(
        url, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_the_trajectory_api_answers_its_user_and_not_the_browser(api: str, tmp_path: Path) -> None:
    assert status_of(f"{api}/status") == 200
    assert status_of(f"{api}/reset_data") == 200  # as Atropos's clients send it
    assert status_of(f"{api}/reset_data", "POST") == 200
    assert status_of(f"{api}/reset_data", Sec_Fetch_Site="none", Sec_Fetch_Mode="navigate") == 403
    assert status_of(f"{api}/batch", Sec_Purpose="prefetch") == 403
    assert status_of(f"{api}/status", Referer="http://evil.example/page") == 403
    assert status_of(f"{api}/docs", Sec_Fetch_Site="none", Sec_Fetch_Mode="navigate") == 200
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700  # parents too
    if os.geteuid() == 0 and sys.platform == "linux":
        assert "403 Forbidden" in as_other_user(api)


def test_the_api_of_a_run_wants_the_runs_token(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = rl_run(tmp_path, port)
    plan = RunPlan(run)
    spec = plan._api()
    token_file = run.folder / "api_token"
    assert token_file.stat().st_mode & 0o777 == 0o600
    assert RunPlan(run)._api().environ == spec.environ  # also after a restart of the supervisor
    environ = {**os.environ, "HERMES_HOME": str(tmp_path), **spec.environ}
    with subprocess.Popen(spec.command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        assert str(port) in process.stdout.readline()
        assert status_of(f"http://127.0.0.1:{port}/status") == 401
        assert status_of(f"http://127.0.0.1:{port}/scored_data", "POST") == 401
        assert plan._api_status() is not None
        process.terminate()
