"""Keys that `hermes config set` stored reach the libraries that need them, and no command of a model."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hermes.training.monitor.sinks import read_wandb
from tests.cli.process import PASSED_ON, hermes
from tests.fakes.absent import without_packages
from tests.fakes.provider import FakeProvider, text, tool_calls

CANARY = "canary-0123456789abcdef"
HELLO = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
ENVIRONMENT = '''
"""An environment that reads its key where such files read it."""
import json, os
from hermes.envs.base import BaseEnv
from hermes.envs.config import BaseEnvConfig
from hermes.envs.servers.config import APIServerConfig

class Keys(BaseEnv):
    name = "keys"

    @classmethod
    def config_init(cls):
        key = os.environ["OPENROUTER_API_KEY"]
        server = APIServerConfig(base_url="http://127.0.0.1:9/v1", api_key=key, health_check=False)
        return BaseEnvConfig(use_wandb=False), [server]

    async def setup(self): pass
    async def get_next_item(self): return None
    async def collect_trajectories(self, item): return None, []

    async def evaluate(self, *args, **kwargs):
        names = ("OPENROUTER_API_KEY", "HF_TOKEN", "HERMES_SANDBOX__BACKEND")
        print("SEES " + json.dumps({name: os.environ.get(name) for name in names}))

if __name__ == "__main__":
    Keys.cli()
'''
REWARD = """
import os
def score(ctx):
    return 1.0 if os.environ.get("JUDGE_API_KEY") == "judge-key-0123456789" else 0.0
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    place = tmp_path / "home"
    for name, value in {"OPENROUTER_API_KEY": CANARY, "HF_TOKEN": "hf_stored", "PLAIN_NAME": CANARY}.items():
        assert hermes(place, "config", "set", name, value).returncode == 0
    return place


@contextmanager
def recording_server() -> Iterator[tuple[str, list[str]]]:
    """Its address, and the Authorization of every request, which it refuses."""
    authorizations: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            authorizations.append(self.headers.get("Authorization", ""))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(401)
            self.send_header("Content-Length", "2")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(b"{}")

        do_POST = do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", authorizations
    finally:
        server.shutdown()
        server.server_close()


def run_python(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    environ |= {"HERMES_HOME": str(home), **variables}
    return subprocess.run(
        [sys.executable, *arguments], env=environ, capture_output=True, text=True, timeout=100
    )


def variables_of(done: subprocess.CompletedProcess[str]) -> dict[str, str | None]:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SEES ")]
    names: dict[str, str | None] = json.loads(line.removeprefix("SEES "))
    return names


def test_an_environment_file_finds_a_stored_key(home: Path, tmp_path: Path) -> None:
    assert hermes(home, "config", "set", "sandbox.backend", "local").returncode == 0
    file = tmp_path / "keys_env.py"
    file.write_text(ENVIRONMENT)
    stored = {"OPENROUTER_API_KEY": CANARY, "HF_TOKEN": "hf_stored", "HERMES_SANDBOX__BACKEND": None}
    by_command = run_python(home, "-m", "hermes", "env", "evaluate", str(file))
    assert by_command.returncode == 0, by_command.stderr
    assert variables_of(by_command) == stored
    by_python = run_python(home, str(file), "evaluate")
    assert by_python.returncode == 0, by_python.stderr
    assert variables_of(by_python) == stored
    own = run_python(home, str(file), "evaluate", OPENROUTER_API_KEY="own")
    assert variables_of(own) == stored | {"OPENROUTER_API_KEY": "own"}


def test_a_stored_hub_token_is_sent_to_the_hub(home: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"conversations": HELLO}) + "\n")
    with recording_server() as (url, authorizations):
        assert hermes(home, "config", "set", "HF_ENDPOINT", url).returncode == 0
        flags = ("compress", "--input", str(rows), "--tokenizer", "someone/private")
        done = run_python(home, "-m", "hermes", *flags, HF_HOME=str(tmp_path / "hub"))
    assert done.returncode != 0, done.stdout
    assert "Bearer hf_stored" in authorizations


def test_a_trainer_sends_a_stored_key_to_weights_and_biases(
    home: Path, bundled_home: Path, tmp_path: Path
) -> None:
    """With the real package, to a server of ours, which also refuses to train."""
    key = "0123456789" * 4
    (home / "models").symlink_to(bundled_home / "models")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"conversations": HELLO}) + "\n")
    with recording_server() as (url, authorizations):
        for name, value in {"WANDB_API_KEY": key, "WANDB_BASE_URL": url}.items():
            assert hermes(home, "config", "set", name, value).returncode == 0
        flags = ("train", "sft", str(rows), "--service", url, "--run-dir", str(tmp_path / "run"))
        done = run_python(home, "-m", "hermes", *flags, HOME=str(tmp_path))
    assert f"{url} refused the key" in done.stderr, done.stderr
    assert "No API key configured" not in done.stderr
    assert f"Basic {base64.b64encode(f'api:{key}'.encode()).decode()}" in authorizations, done.stderr


@pytest.mark.slow
def test_a_key_without_the_package_is_said_and_training_goes_on(
    home: Path, bundled_home: Path, tmp_path: Path
) -> None:
    (home / "models").symlink_to(bundled_home / "models")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"conversations": HELLO}) + "\n")
    variables = {"PYTHONPATH": without_packages(tmp_path, "wandb"), "WANDB_API_KEY": "0" * 40}
    with recording_server() as (url, _):
        flags = ("train", "sft", str(rows), "--service", url, "--run-dir", str(tmp_path / "run"))
        done = run_python(home, "-m", "hermes", *flags, **variables)
        required = run_python(home, "-m", "hermes", *flags, "--sink", "wandb", **variables)
    assert done.stderr.count("needs the package 'wandb'") == 1, done.stderr
    assert "refused the key" in done.stderr, "it went on to the training"
    assert "pip install 'hermes-research[wandb]'" in read_wandb(tmp_path / "run")["error"]
    assert "error: the sink wandb needs the package 'wandb'" in required.stderr, required.stderr


def test_a_trainer_takes_batches_from_the_stored_address(home: Path, tmp_path: Path) -> None:
    assert hermes(home, "config", "set", "RL_API_URL", "http://127.0.0.1:9/").returncode == 0
    flags = ("train", "grpo", "--base-url", "http://127.0.0.1:9", "--run-dir", str(tmp_path / "run"))
    assert "sequences from http://127.0.0.1:9\n" in hermes(home, *flags).stdout
    flagged = hermes(home, *flags, "--api-url", "http://127.0.0.1:7")
    assert "sequences from http://127.0.0.1:7\n" in flagged.stdout


def test_a_worker_of_a_batch_gives_stored_keys_to_a_reward_function(home: Path, tmp_path: Path) -> None:
    assert hermes(home, "config", "set", "JUDGE_API_KEY", "judge-key-0123456789").returncode == 0
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Say hello."}\n')
    with FakeProvider([text("Hello.")], loop=True) as provider:
        flags = (
            "--dataset-file",
            str(tmp_path / "prompts.jsonl"),
            "--run-name",
            "first",
            "--num-workers",
            "1",
        )
        more = ("--model", "m", "--base-url", provider.base_url, "--toolsets", "none")
        reward = ("--reward", f"{tmp_path / 'reward.py'}:score", "--output-dir", str(tmp_path))
        done = run_python(home, "-m", "hermes", "batch", *flags, *more, *reward)
    assert done.returncode == 0, done.stderr
    (row,) = [
        json.loads(line) for line in (tmp_path / "first" / "trajectories.jsonl").read_text().splitlines()
    ]
    assert row["reward"] == 1.0, row


@pytest.mark.parametrize("backend", ["local", "bubblewrap"])
def test_commands_of_a_model_see_no_stored_variable(home: Path, backend: str) -> None:
    """Neither in the terminal nor in code, whatever the variable is called."""
    script = "import os; print(sorted(os.environ))"
    calls = [("terminal", {"command": "env | sort"}), ("execute_code", {"code": script})]
    with FakeProvider([tool_calls(calls), text("Done.")]) as provider:
        endpoint = ("--model", "m", "--base-url", provider.base_url)
        flags = ("--toolsets", "terminal,code_execution", "--sandbox", backend, "--yes", "--json")
        done = hermes(home, "-q", "What do you see?", *endpoint, *flags)
        assert done.returncode == 0, done.stderr
        results = [m["content"] for m in provider.requests[1].json["messages"] if m["role"] == "tool"]
    assert len(results) == 2 and all("PATH" in result for result in results), results
    for result in results:
        for name in (CANARY, "OPENROUTER_API_KEY", "HF_TOKEN", "PLAIN_NAME", "_HERMES_EXPORTED"):
            assert name not in result


def test_help_and_repair_work_with_a_broken_file(home: Path) -> None:
    (home / ".env").write_text("not a line\n")
    assert hermes(home, "env", "serve", "--help").returncode == 0
    assert hermes(home, "doctor").returncode == 1
    done = hermes(home, "env", "evaluate", "calculator")
    assert done.returncode == 2 and "expected NAME=VALUE" in done.stderr
