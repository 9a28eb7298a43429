"""Third-party clients, unmodified, against the engine's OpenAI face. Each has an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.venvs import venv_python
from tests.engine.http.engine_process import Server, launch

CLIENTS = Path(__file__).parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def engine(bundled_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The bundled model: these clients need a chat template and words."""
    folder = tmp_path_factory.mktemp("engine")
    server = launch("hermes/smollm2", folder, "--no-token", HERMES_HOME=str(bundled_home))
    yield server
    server.kill()


def run_client(python: Path, script: str, *arguments: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        [str(python), str(CLIENTS / script), *arguments],
        env={**variables, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, f"{process.stdout}\n{process.stderr}"
    assert process.stdout.strip().splitlines()[-1].startswith("OK "), process.stdout
    return process.stdout


def test_instructor_gets_objects_from_text_and_from_tool_calls(engine: Server) -> None:
    python = venv_python("instructor", "instructor")
    printed = run_client(python, "instructor_client.py", f"{engine.url}/v1", "hermes/smollm2")
    assert "MD_JSON" in printed and "TOOLS" in printed


def test_pydantic_ai_runs_an_agent_with_a_tool_and_streams(engine: Server) -> None:
    python = venv_python("pydantic-ai", "pydantic-ai-slim[openai]")
    assert "STREAMED" in run_client(python, "pydantic_ai_client.py", f"{engine.url}/v1", "hermes/smollm2")


def test_inspect_ai_evaluates_with_logprobs(engine: Server, tmp_path: Path) -> None:
    python = venv_python("inspect-ai", "inspect-ai", "openai")
    run_client(python, "inspect_client.py", f"{engine.url}/v1", "hermes/smollm2", str(tmp_path))


def test_lm_eval_scores_continuations_as_the_engine_does(
    engine: Server, bundled_home: Path, tmp_path: Path
) -> None:
    python = venv_python("lm-eval", "torch==2.13.0", "lm-eval[api]", "transformers")
    tokenizer = bundled_home / "models" / "hermes--smollm2"
    arguments = (f"{engine.url}/v1", "hermes/smollm2", str(tokenizer), str(tmp_path))
    assert run_client(python, "lm_eval_client.py", *arguments).count("LOGPROBS") == 2


def test_verifiers_evaluates_its_own_example(engine: Server, tmp_path: Path) -> None:
    from tests.compat.verifiers.packages import examples, verifiers_python

    python = verifiers_python()
    arguments = (f"{engine.url}/v1", "hermes/smollm2", str(examples()), str(tmp_path))
    printed = run_client(python, "verifiers_client.py", *arguments)
    assert "EPISODE ok" in printed
