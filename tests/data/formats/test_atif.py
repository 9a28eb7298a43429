"""ATIF as another implementation sees it: NVIDIA's models of the schema accept every document."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from hermes.core import Message
from hermes.data.example import Example
from hermes.data.formats import atif
from hermes.data.formats.base import BadRowError, ToolCallStyle
from tests import records
from tests.data import made


@given(example=made.examples())
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_every_document_is_valid_atif(example: Example) -> None:
    nat = pytest.importorskip("nat.atif", reason="pip install nvidia-nat-atif")
    (row,) = atif.write(example, ToolCallStyle.STRUCTURED)
    parsed = nat.Trajectory.model_validate_json(json.dumps(row))
    assert len(parsed.steps) == row["final_metrics"]["total_steps"]


HARBOR = "harbor==0.25.0"
VALIDATE = """
import json, sys, types
for name in ("harbor", "harbor.models", "harbor.utils"):  # their own modules import all of Harbor
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [f"{sys.argv[1]}/{name.replace('.', '/')}"]
from harbor.utils.trajectory_validator import TrajectoryValidator
validator, count = TrajectoryValidator(), 0
for line in sys.stdin:
    assert validator.validate(json.loads(line)), (validator.errors, line)
    count += 1
assert not validator.validate({"schema_version": "ATIF-v1.4", "steps": []})
print(count)
"""


@pytest.mark.slow
def test_harbors_own_validator_accepts_every_document(tmp_path: Path) -> None:
    """Of the package whose viewer shows them; it needs Python 3.12, and its models of ATIF do not."""
    flags = ("--no-deps", "--ignore-requires-python", "--target", str(tmp_path))
    got = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *flags, HARBOR], capture_output=True, text=True
    )
    if got.returncode:
        pytest.skip(f"pip could not install {HARBOR}: {got.stderr.strip()[-300:]}")
    lines: list[str] = []

    @given(example=made.examples())
    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    def write(example: Example) -> None:
        lines.extend(json.dumps(row) for row in atif.write(example, ToolCallStyle.STRUCTURED))

    write()
    text = "".join(f"{line}\n" for line in lines)
    child = [sys.executable, "-c", VALIDATE, str(tmp_path)]
    done = subprocess.run(child, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) == len(lines) >= 100


def test_a_turn_is_one_step_with_its_calls_and_their_results() -> None:
    (row,) = atif.write(made.example(records.conversation()), ToolCallStyle.STRUCTURED)
    assert [step["source"] for step in row["steps"]] == ["system", "user", "agent", "agent"]
    assert row["steps"][2]["observation"] == {"results": [{"content": "4", "source_call_id": "call_1"}]}
    assert row["steps"][2]["metrics"]["prompt_tokens"] == 115


def test_a_document_of_a_stranger_is_read() -> None:
    row = {
        "schema_version": "ATIF-v1.4",
        "session_id": "s",
        "agent": {"name": "other", "version": "1", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "hi"},
            {
                "step_id": 2,
                "source": "agent",
                "message": "",
                "tool_calls": [{"tool_call_id": "c", "function_name": "ls", "arguments": {"path": "/"}}],
                "observation": {"results": [{"source_call_id": "c", "content": "bin"}]},
                "metrics": {"prompt_tokens": 5, "completion_tokens": 2},
            },
            {"step_id": 3, "source": "agent", "message": [{"type": "text", "text": "bin it is"}]},
        ],
    }
    read = atif.read(row)
    assert [message.content for message in read.messages] == ["hi", "", "bin", "bin it is"]
    assert read.messages[2] == Message.tool(read.messages[1].tool_calls[0], "bin")
    assert read.trajectory.usage.total == 7
    assert atif.read(row).id == read.id


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({}, "'schema_version' is not ATIF-v1.x"),
        ({"schema_version": "ATIF-v1.7"}, "'steps' is missing"),
        ({"schema_version": "ATIF-v1.7", "steps": []}, "'steps' is empty"),
        (
            {"schema_version": "ATIF-v1.7", "steps": [{"source": "robot"}]},
            'step 1 has the unknown source "robot"',
        ),
    ],
)
def test_what_is_not_atif_is_named(row: dict[str, object], problem: str) -> None:
    with pytest.raises(BadRowError, match=problem):
        atif.read(row)
