"""`hermes engine serve`: which model, which address, and what it says when it cannot start."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.cli.terminal.interrupted import STOPPED
from tests.cli.process import failure, hermes
from tests.engine.http.conftest import Start
from tests.engine.http.engine_process import Server
from tests.engine.http.tinker_wire import API, Raw
from tests.training.world import Process


def test_an_address_others_can_reach_needs_a_token(tmp_path: Path, tiny_folder: Path) -> None:
    arguments = ["--model", str(tiny_folder), "--state-dir", str(tmp_path), "--host", "0.0.0.0"]
    error, fix = failure(hermes(tmp_path, "engine", "serve", *arguments), 2)
    assert "without a token" in error
    assert "HERMES_ENGINE_TOKEN" in fix


@pytest.mark.slow
def test_a_hub_name_is_served_from_the_hubs_cache_within_the_limits_given(
    start: Start, tmp_path: Path, tiny_folder: Path
) -> None:
    cached = tmp_path / "hub" / "models--acme--tiny"
    shutil.copytree(tiny_folder, cached / "snapshots" / "5eed")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("5eed")
    limits = ("--max-length", "256", "--kv-gib", "0.0001", "--max-adapters", "1", "--model", "acme/tiny")
    server = start(tmp_path / "state", *limits, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    (offered,) = server.ask("GET", f"{API}/get_server_capabilities").json()["supported_models"]
    longest = int(0.0001 * 2**30) // 768  # bytes of a token's keys and values: less than 256 tokens fit
    assert (offered["model_name"], offered["max_context_length"]) == ("acme/tiny", longest)
    asked = {"model": "acme/tiny", "prompt": "hello", "max_tokens": 2, "return_token_ids": True}
    (choice,) = server.ask("POST", "/v1/completions", asked).json()["choices"]
    assert (len(choice["prompt_token_ids"]), len(choice["token_ids"])) == (5, 2)
    first, second = (Raw(server, "acme/tiny") for _ in range(2))
    assert first.result(first.created)["model_id"] == first.model
    refused = second.result(second.created)
    assert (refused["category"], "holds 1 adapters already" in refused["error"]) == ("server", True)


def test_a_folder_that_is_not_there_is_no_hub_name(tmp_path: Path) -> None:
    error, fix = failure(hermes(tmp_path, "engine", "serve", "--model", str(tmp_path / "gone")), 2)
    assert f"there is no folder '{tmp_path / 'gone'}'" in error
    assert "hub name" in fix


def test_a_taken_port_is_said_at_once(shared: Server, tmp_path: Path, tiny_folder: Path) -> None:
    arguments = ["--model", str(tiny_folder), "--state-dir", str(tmp_path / "s")]
    port = shared.url.rpartition(":")[2]
    error, fix = failure(hermes(tmp_path, "engine", "serve", *arguments, "--port", port), 1)
    assert "it is taken" in error
    assert "--port" in fix


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings another OpenMP there")
def test_the_servers_threads_do_not_spin_for_long(shared: Server, tmp_path: Path, tiny_folder: Path) -> None:
    arguments = ["--model", str(tiny_folder), "--state-dir", str(tmp_path / "s")]
    port = shared.url.rpartition(":")[2]
    command = [sys.executable, "-m", "hermes", "engine", "serve", *arguments, "--port", port]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    told = {**kept, "HERMES_HOME": str(tmp_path), "OMP_DISPLAY_ENV": "VERBOSE"}
    done = subprocess.run(command, env=told, capture_output=True, text=True)
    assert "it is taken" in done.stderr  # so soon is torch loaded
    assert re.search("GOMP_SPINCOUNT = '[15]000'", done.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_engine_says_what_is_kept(
    tmp_path: Path, tiny_folder: Path, number: signal.Signals
) -> None:
    flags = ("--model", str(tiny_folder), "--port", "0", "--device", "cpu", "--dtype", "float32")
    engine = Process(tmp_path, "engine", "serve", *flags, "--state-dir", str(tmp_path / "state"))
    try:
        engine.until(r"http://\S+:\d+")
        engine.process.send_signal(number)
        assert engine.wait() == 0, engine.output
    finally:
        engine.kill()
    assert engine.output.endswith("stopped; " + STOPPED["engine serve"] + "\n"), engine.output
