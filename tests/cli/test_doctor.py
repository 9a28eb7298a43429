"""`hermes doctor` and `hermes models`, as processes against a real loopback server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import hermes

KEY = "lab-key-0123456789"


class Endpoint(BaseHTTPRequestHandler):
    """Lists two models at /v1 to whoever has the key; sends /moved elsewhere; talks nonsense at /odd."""

    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        if self.path == "/moved/models":
            self.send_response(302)
            self.send_header("Location", "/v1/models")
            self.end_headers()
        elif self.path == "/odd/models":
            self._answer(200, [1, 2])
        elif self.headers.get("Authorization") == f"Bearer {KEY}":
            self._answer(200, {"data": [{"id": "a"}, {"id": "b"}]})
        else:
            self._answer(401, {})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[ThreadingHTTPServer]:
    handler = type("Handler", (Endpoint,), {"seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def examine(home: Path, exit_code: int = 0, **env: str) -> dict[str, dict[str, str]]:
    done = hermes(home, "doctor", "--json", env=env)
    assert done.returncode == exit_code, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] == (exit_code == 0)
    for check in report["checks"]:
        assert check["status"] in ("ok", "warn", "missing", "fail")
        assert check["what"]
        if check["status"] in ("missing", "fail"):
            assert check["gives"] and check["fix"], check
    return {check["name"]: check for check in report["checks"]}


def test_every_promised_check_is_made_and_changes_nothing(tmp_path: Path) -> None:
    checks = examine(tmp_path / "home")
    assert set(checks) >= {
        *(
            "python",
            "sqlite",
            "disk",
            "home",
            "config",
            "model",
            "bundled model",
            "bubblewrap",
            "docker",
            "gpu",
        ),
        *("torch", "transformers", "browser", "mcp", "pyarrow", "wandb", "key openrouter", "key openai"),
        *("endpoint vllm", "endpoint sglang", "endpoint ollama", "endpoint llamacpp"),
    }
    assert checks["python"]["status"] == "ok"
    assert "a lock file keeps writers one at a time" in checks["sqlite"]["what"]
    assert checks["key openrouter"]["fix"] == "hermes config set OPENROUTER_API_KEY"
    assert not (tmp_path / "home").exists()


def test_the_text_is_aligned_and_says_what_a_missing_thing_would_give(tmp_path: Path) -> None:
    done = hermes(tmp_path, "doctor", env={"PATH": str(tmp_path)})
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("missing  bubblewrap"))
    column = lines[row].index("bwrap is not installed")
    assert lines[row + 1][column:].startswith("gives: isolated commands")
    assert lines[row + 2][column:] == "fix:   apt install bubblewrap"
    assert next(line for line in lines if " python " in line)[column:].startswith("3.")
    assert lines[-1].endswith(" 0 fail")


def test_programs_that_are_there_but_do_not_work_count_as_missing(tmp_path: Path) -> None:
    for name in ("bwrap", "docker", "nvidia-smi"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {name} cannot >&2\nexit 1\n")
        program.chmod(0o755)
    checks = examine(tmp_path, PATH=str(tmp_path))
    for name, program in (("bubblewrap", "bwrap"), ("docker", "docker"), ("gpu", "nvidia-smi")):
        assert checks[name]["status"] == "missing"
        assert checks[name]["what"].endswith(f"{program} cannot")


def test_a_gpu_that_this_torch_cannot_use_is_a_warning(tmp_path: Path) -> None:
    torch = version("torch")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.1'\n")
    program.chmod(0o755)
    check = examine(tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")["gpu"]
    assert check["status"] == ("warn" if torch.endswith("+cpu") else "ok")
    assert check["what"].startswith("NVIDIA H200, 143771 MiB, 570.1; torch")


def test_a_broken_config_is_a_finding_and_the_rest_is_still_examined(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("sandbox: {bakend: x}\n")
    checks = examine(tmp_path, 1, OPENROUTER_API_KEY="or-key-0123456789")
    assert checks["config"]["status"] == "fail"
    assert "config.yaml:1:11: unknown setting 'sandbox.bakend'" in checks["config"]["what"]
    assert checks["config"]["fix"] == "did you mean sandbox.backend?"
    assert checks["key openrouter"]["what"] == "OPENROUTER_API_KEY is set (from environment)"
    assert checks["endpoint vllm"]["status"]


def test_a_home_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = examine(tmp_path / "file", 1)["home"]
    assert (check["status"], check["what"]) == ("fail", f"{tmp_path / 'file'} is a file")
    check = examine(Path("/proc/hermes-home"), 1)["home"]
    assert check["status"] == "fail"
    assert check["what"].startswith("/proc/hermes-home cannot be written: ")


def test_files_that_others_can_read_are_a_warning_with_the_command(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / ".env").write_text("A_KEY=1\n")
    (tmp_path / ".env").chmod(0o644)
    check = examine(tmp_path)["home"]
    assert (check["status"], check["fix"]) == ("warn", f"chmod 600 {tmp_path / '.env'}")
    (tmp_path / ".env").chmod(0o600)
    assert examine(tmp_path)["home"]["status"] == "ok"


def test_a_default_model_that_cannot_answer_is_a_failure(tmp_path: Path) -> None:
    check = examine(tmp_path, 1, HERMES_MODEL="openrouter/x")["model"]
    assert "OPENROUTER_API_KEY is not set" in check["what"]
    assert "hermes config set OPENROUTER_API_KEY" in check["fix"]
    check = examine(tmp_path, 1, HERMES_MODEL="opnai/x")["model"]
    assert "did you mean openai/x?" in check["fix"]


def test_configured_endpoints_are_asked_with_their_own_key_only(
    tmp_path: Path, endpoint: ThreadingHTTPServer
) -> None:
    base = f"http://127.0.0.1:{endpoint.server_port}"
    (tmp_path / ".env").write_text(f"LAB_KEY={KEY}\n")
    (tmp_path / "config.yaml").write_text(
        "providers:\n"
        f"  lab: {{base_url: {base}/v1, key_env: LAB_KEY}}\n"
        f"  open: {{base_url: {base}/v1}}\n"
        f"  moved: {{base_url: {base}/moved, key_env: LAB_KEY}}\n"
        f"  odd: {{base_url: {base}/odd}}\n"
        "  gone: {base_url: http://127.0.0.1:1/v1}\n"
    )
    checks = examine(tmp_path, http_proxy="http://127.0.0.1:1")
    lab, refused = checks["endpoint lab"], checks["endpoint open"]
    assert (lab["status"], lab["what"]) == ("ok", f"{base}/v1, 2 models")
    assert (refused["status"], refused["what"]) == ("warn", f"{base}/v1 answers HTTP 401")
    assert checks["endpoint moved"]["what"] == f"{base}/moved answers HTTP 302"
    assert "not like an OpenAI-compatible server" in checks["endpoint odd"]["what"]
    assert checks["endpoint gone"]["status"] == "warn"
    assert checks["key lab"]["what"] == "LAB_KEY is set (from .env)"
    seen = endpoint.RequestHandlerClass.seen  # type: ignore[attr-defined]
    assert set(seen) == {
        ("/moved/models", f"Bearer {KEY}"),
        ("/odd/models", None),
        ("/v1/models", None),
        ("/v1/models", f"Bearer {KEY}"),
    }
    assert len(seen) == 4
    assert KEY not in json.dumps(checks)


def test_a_key_that_no_header_can_hold_is_not_printed(tmp_path: Path, endpoint: ThreadingHTTPServer) -> None:
    base = f"http://127.0.0.1:{endpoint.server_port}/v1"
    (tmp_path / "config.yaml").write_text(f"providers: {{lab: {{base_url: '{base}', key_env: LAB_KEY}}}}\n")
    checks = examine(tmp_path, LAB_KEY=f"{KEY}\nmore")
    assert checks["endpoint lab"]["what"] == f"{base}: could not be asked (ValueError)"
    assert KEY not in json.dumps(checks)


def test_a_broken_address_in_the_environment_is_a_finding(tmp_path: Path) -> None:
    checks = examine(tmp_path, 1, OPENAI_BASE_URL="localhost:8000")
    assert "OPENAI_BASE_URL: providers.openai.base_url: expected an address" in checks["config"]["what"]
    assert checks["python"]["status"] == "ok"


def test_a_variable_that_sets_nothing_is_pointed_out(tmp_path: Path) -> None:
    done = hermes(tmp_path, "doctor", env={"HERMES_MODL": "x/y"})
    assert "HERMES_MODL sets no known setting" in done.stdout
    assert done.returncode == 0


def test_models_lists_providers_keys_and_the_bundled_model(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("providers: {lab: {base_url: 'http://lab:1/v1'}}\n")
    env = {"OPENROUTER_API_KEY": KEY, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    listing = json.loads(hermes(tmp_path, "models", "--json", env=env).stdout)
    assert listing["default"] == "hermes/smollm2"
    rows = {row["name"]: row for row in listing["providers"]}
    assert rows["hermes"]["models"] == ["hermes/smollm2"]
    assert (rows["openrouter"]["key"], rows["openrouter"]["key_needed"]) == ("environment", True)
    assert (rows["openai"]["base_url"], rows["openai"]["key"]) == ("http://127.0.0.1:9/v1", None)
    assert rows["openai"]["key_needed"] is False
    assert rows["lab"]["base_url"] == "http://lab:1/v1"
    text = hermes(tmp_path, "models", env=env).stdout
    assert "OPENROUTER_API_KEY set (from environment)" in text
    assert "OPENAI_API_KEY not set (optional)" in text
    assert KEY[:8] not in text + json.dumps(listing)
