"""A batch as a person starts it: tasks, command, workers, and what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.fakes.provider import FakeProvider, Reply, text, tool_calls

Answer = Callable[[dict[str, Any]], Reply]
PRICED = {"HERMES_PRICES": json.dumps({"custom/m": {"input": 1000.0, "output": 1000.0}})}
"""15 tokens a call: 1.5 cents."""
CALL_USD = 0.015


def solve(body: dict[str, Any]) -> Reply:
    """Deterministic: one tool call, then the tool's result as the answer."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return text(f"The answer is {last['content']}.")
    return tool_calls([("calculator", {"expression": last["content"].removeprefix("Compute ")})])


def write_tasks(folder: Path, count: int, repeat: int = 1) -> Path:
    path = folder / "tasks.jsonl"
    rows = [{"prompt": f"Compute {n} + {n}", "expected": str(2 * n)} for n in range(count)] * repeat
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(folder: Path, provider: FakeProvider, *flags: str, name: str = "run") -> list[str]:
    return [
        *(
            "batch",
            "--dataset-file",
            str(folder / "tasks.jsonl"),
            "--run-name",
            name,
            "--output-dir",
            str(folder / "data"),
        ),
        *(
            "--model",
            "m",
            "--base-url",
            provider.base_url,
            "--toolsets",
            "math",
            "--num-workers",
            "2",
            "--json",
            *flags,
        ),
    ]


def rows(folder: Path, name: str = "run", file: str = "trajectories.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data" / name / file).read_text("utf-8").splitlines()]


def essence(row: dict[str, Any]) -> str:
    """What must be equal however the run was interrupted: no ids, no times."""
    return json.dumps(
        [
            row["key"],
            row["sample"],
            row["completed"],
            row["turns"],
            [
                t["value"]
                for t in row["conversations"]
                if t["from"] != "tool" and "<tool_call>" not in t["value"]
            ],
        ]
    )


def start(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    environ = {"HERMES_HOME": str(folder), "PATH": os.environ["PATH"], "HOME": str(folder), **(env or {})}
    return subprocess.Popen(
        [sys.executable, "-m", "hermes", *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers_of(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if (
                    int(fields[1]) == parent
                    and b"hermes.batch.workers.worker" in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def write_rows(folder: Path, *written: dict[str, Any]) -> None:
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))


def look_around(body: dict[str, Any]) -> Reply:
    last = body["messages"][-1]
    if last["role"] == "tool":
        return text(json.loads(last["content"])["output"])
    return tool_calls([("terminal", {"command": last["content"]})])


def last_lines(err: str) -> tuple[str, str]:
    error, fix = err.strip().splitlines()[-2:]
    assert error.startswith("error: ") and fix.startswith("  fix: "), err
    return error, fix
