"""The server as a process: limits, tokens, other sites, addresses that do not work, an orderly end."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.errors import UsageError
from hermes.rollouts.server import TOKEN_SCHEME
from hermes.safety.access import HttpAccessPolicy, is_loopback, policy_for
from tests.rollouts.conftest import Client, Launch, command, environment, group, marks
from tests.waiting import wait_until

TOKEN = "a-token-of-sufficient-length"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environment(**variables), capture_output=True, text=True, timeout=60
    )


@pytest.fixture(scope="module")
def guarded(launch: Launch) -> Client:
    return launch("--host", "0.0.0.0", HERMES_API_TOKEN=TOKEN).client


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_an_address_that_others_can_reach_needs_a_token(host: str) -> None:
    with pytest.raises(UsageError, match="without a token"):
        policy_for(TOKEN_SCHEME, host, None)
    assert policy_for(TOKEN_SCHEME, host, TOKEN) == HttpAccessPolicy(TOKEN_SCHEME, TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert is_loopback(host)
    assert policy_for(TOKEN_SCHEME, host, None) == HttpAccessPolicy(TOKEN_SCHEME)


def test_without_a_token_the_server_does_not_start_on_such_an_address() -> None:
    done = run("--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2
    assert "refusing to listen on 0.0.0.0 without a token" in done.stderr
    assert "HERMES_API_TOKEN" in done.stderr


def test_a_token_that_can_be_guessed_is_refused() -> None:
    done = run("--host", "0.0.0.0", "--port", "0", HERMES_API_TOKEN="short")
    assert done.returncode == 2
    assert "at least 16" in done.stderr
    assert "short" not in done.stderr


def test_every_request_needs_the_token_as_bearer_or_as_password_of_the_url(guarded: Client) -> None:
    refused = guarded.ask("GET", "/info")
    assert refused.status == 401
    assert "Basic" in refused.headers["www-authenticate"]
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    for good in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {basic}"):
        assert guarded.ask("GET", "/info", Authorization=good).status == 200
    for bad in ("Bearer wrong", f"Basic {TOKEN}", f"Digest {TOKEN}", "Basic ####", "Bearer", TOKEN):
        assert guarded.ask("POST", "/register", {}, Authorization=bad).status == 401
    assert guarded.ask("GET", "/docs").status == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::", "0.0.0.0", ""]
)
def test_a_rebound_name_is_refused(api: Client, host: str) -> None:
    assert api.ask("GET", "/info", Host=host).status == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:8000", "LOCALHOST"])
def test_loopback_names_are_answered(api: Client, host: str) -> None:
    assert api.ask("GET", "/info", Host=host).status == 200


def test_pages_of_other_sites_can_neither_reset_nor_read(api: Client) -> None:
    api.register()
    assert api.ask("GET", "/reset_data", Origin="http://evil.example").status == 403
    assert api.ask("GET", "/reset_data", Origin="null").status == 403
    assert api.ask("GET", "/reset_data", Sec_Fetch_Site="cross-site").status == 403
    assert api.get("/info")["batch_size"] == 8
    for origin in ("http://127.0.0.1:3000", f"https://127.0.0.1:{api.port}"):  # ports of another user
        assert api.ask("GET", "/info", Origin=origin).status == 403
    assert api.ask("GET", "/info", Origin=f"http://127.0.0.1:{api.port}").status == 200
    assert api.ask("GET", "/docs", Sec_Fetch_Site="none").status == 200


def test_bodies_over_the_limit_are_refused_however_they_come(launch: Launch) -> None:
    api = launch("--max-body-mb", "1").client
    big = json.dumps(group(images="x" * (1 << 20))).encode()
    assert api.ask("POST", "/scored_data", raw=big).status == 413
    assert api.ask("POST", "/scored_data", raw=gzip.compress(big), Content_Encoding="gzip").status == 413
    bomb = gzip.compress(b" " * (40 << 20), 1)
    assert api.ask("POST", "/scored_data", raw=bomb, Content_Encoding="gzip").status == 413
    connection = http.client.HTTPConnection("127.0.0.1", api.port)
    pieces = (big[at : at + 100_000] for at in range(0, len(big), 100_000))
    connection.request(
        "POST", "/scored_data", pieces, {"Content-Type": "application/json"}, encode_chunked=True
    )
    assert connection.getresponse().status == 413
    connection.close()
    assert api.get("/status")["queue_size"] == 0


def test_a_full_queue_refuses_until_there_is_room(launch: Launch) -> None:
    api = launch("--max-groups", "6").client
    api.register()
    for mark in range(6):
        api.post("/scored_data", group(mark=mark))
    for path, body in (("/scored_data", group()), ("/scored_data_list", [group()])):
        refused = api.ask("POST", path, body)
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert "full" in refused.json()["detail"]
    assert marks(api.batch()) == [0, 1, 2, 3]
    wait_until(lambda: api.ask("POST", "/scored_data", group(mark=6)).status != 503)
    metrics = api.ask("GET", "/metrics").body.decode()
    assert 'posts_refused_total{reason="full"}' in metrics


def test_bytes_are_bounded_too(launch: Launch) -> None:
    api = launch("--max-mb", "1").client
    body = group(images="x" * 600_000)
    assert api.ask("POST", "/scored_data", body).status == 200
    assert api.ask("POST", "/scored_data", body).status == 503


def test_groups_that_can_never_be_served_are_refused_when_there_are_too_many(api: Client) -> None:
    api.start()
    env_id = api.add_env(group_size=4)
    parts, misfits = [group(3, env_id=env_id)] * 512, [group(9, env_id=env_id)] * 512
    api.post("/scored_data_list", [*parts, *misfits])
    for one_more in (parts[0], misfits[0]):
        refused = api.ask("POST", "/scored_data", one_more)
        assert refused.status == 422
        assert "1024 groups of this environment" in refused.json()["detail"][0]["msg"]
    assert api.ask("POST", "/scored_data_list", [group(9)] * 1025).status == 422
    assert api.post("/scored_data", group(1, env_id=env_id))["buffer_size"] == 511 * 3
    assert api.post("/scored_data", group(4, env_id=env_id)) == {"status": "received"}


def test_unknown_environments_can_be_let_in_as_the_original_does(launch: Launch) -> None:
    api = launch("--accept-unknown-envs").client
    api.register(batch_size=2)
    api.post("/scored_data", group(mark=1, env_id=77))
    assert api.batch()[0]["env_id"] == 77


def test_run_api_is_the_same_command_by_the_name_others_use() -> None:
    script = "from hermes.cli.api import run_api; run_api()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--help"], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "--state-dir" in done.stdout


def test_a_port_that_is_taken_is_said_to_be(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = run("--port", port, "--state-dir", str(tmp_path / "state"))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}: it is taken" in done.stderr
    assert "--port" in done.stderr


def test_a_state_directory_that_cannot_be_used_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("--port", "0", "--state-dir", str(tmp_path / "file" / "below"))
    assert done.returncode == 1
    assert "cannot use" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_polite_end_finishes_what_was_begun_and_keeps_the_state(launch: Launch, tmp_path: Path) -> None:
    first = launch(state_dir=tmp_path)
    first.client.start(starting_step=41)
    env_id = first.client.add_env()
    for mark in range(5):
        first.client.post("/scored_data", group(mark=mark, env_id=env_id))
    assert first.stop() == 0
    second = launch(state_dir=tmp_path).client
    assert second.get("/status")["current_step"] == 41
    assert second.status_env(env_id)["self_queue_size"] == 5
    assert marks(second.batch()) == [0, 1, 2, 3]
    assert {oct(path.stat().st_mode)[-3:] for path in tmp_path.glob("*.log")} == {"600"}


def test_a_large_body_is_parsed_by_a_process_that_ends_with_the_server(
    launch: Launch,
) -> None:
    server = launch()
    api = server.client
    body = group(images="x" * (2 << 20), messages=[[{"role": "user", "content": "x"}]])
    api.post("/scored_data", body)
    assert api.get("/latest_example")["images"] == body["images"]
    processes = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    children = [pid for pid in processes if _parent(pid) == server.process.pid]
    assert len(children) == 1
    server.kill()
    wait_until(lambda: _parent(children[0]) is None)


def _parent(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[1])
