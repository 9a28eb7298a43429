"""Third-party clients, unmodified, against the engine's OpenAI face. Each has an interpreter of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

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


def test_lm_eval_scores_continuations_as_transformers_does_and_generates(
    engine: Server, bundled_home: Path, tmp_path: Path
) -> None:
    python = venv_python("lm-eval", "lm-eval[api]", "transformers")
    folder = bundled_home / "models" / "hermes--smollm2"
    arguments = (f"{engine.url}/v1", "hermes/smollm2", str(folder), str(tmp_path))
    printed = run_client(python, "lm_eval_client.py", *arguments)
    scored = [json.loads(line) for line in printed_lines(printed, "LOGPROBS")]
    choices = {"The sky is": (" blue", " loud"), "Two and two are": (" four", " green")}
    assert [row["question"] for row in scored] == list(choices)
    for row in scored:
        expected = [continuation_logprob(folder, row["question"], word) for word in choices[row["question"]]]
        assert row["logprobs"] == pytest.approx(expected, abs=1e-3)
        assert row["logprobs"][0] > row["logprobs"][1], "the model knows which of the two it is"
    for kind in ("COMPLETED", "CHATTED"):
        answers = [json.loads(line) for line in printed_lines(printed, kind)]
        assert len(answers) == 2 and all(isinstance(answer, str) and "." not in answer for answer in answers)
        assert any(answer.strip() for answer in answers)


def printed_lines(printed: str, kind: str) -> list[str]:
    return [line.partition(" ")[2] for line in printed.splitlines() if line.startswith(f"{kind} ")]


def continuation_logprob(folder: Path, context: str, continuation: str) -> float:
    """By transformers itself: log p of the continuation's tokens after those of the context."""
    model, tokenizer = _reference(folder)
    whole = tokenizer(context + continuation, return_tensors="pt")["input_ids"]
    start = len(tokenizer(context)["input_ids"])
    with torch.no_grad():
        logprobs = model(whole).logits[0].log_softmax(-1)
    targets = whole[0, start:]
    return float(logprobs[start - 1 : -1].gather(1, targets[:, None]).sum())


@cache
def _reference(folder: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_verifiers_evaluates_its_own_example(engine: Server, tmp_path: Path) -> None:
    from tests.compat.verifiers.packages import examples, verifiers_python

    python = verifiers_python()
    arguments = (f"{engine.url}/v1", "hermes/smollm2", str(examples()), str(tmp_path))
    printed = run_client(python, "verifiers_client.py", *arguments)
    assert "EPISODE ok" in printed
