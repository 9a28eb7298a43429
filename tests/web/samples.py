"""A store such as a week of work leaves: siblings, failures, rewards, ratings, tokens, a sub-agent."""

from __future__ import annotations

import json
from pathlib import Path

from hermes.config.paths import db_path
from hermes.core import (
    Boundary,
    Message,
    Outcome,
    Rating,
    RatingKind,
    Relation,
    Reward,
    StopReason,
    TokenTrace,
    ToolCall,
    new_id,
)
from hermes.store import Writer
from tests.records import COMPLETED, model_call, record

TRACE = TokenTrace((1, 2, 3), (10, 11, 12), (-0.01, -1.5, -6.0), "step-3")
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6k"
    "gAAAABJRU5ErkJggg=="
)


def coding_run(number: int, lines: int = 6) -> list[Message]:
    shell = ToolCall(f"c{number}", "terminal", json.dumps({"command": f"pytest -q tests/test_{number}.py"}))
    write = ToolCall(
        f"d{number}", "write_file", json.dumps({"path": "a.py", "content": "def f(x):\n    return x\n"})
    )
    output = "\x1b[32m..\x1b[0m\x1b[31mF\x1b[0m\n" + "\n".join(f"line {k}" for k in range(lines))
    return [
        Message.system("You are a careful engineer."),
        Message.user(f"Fix the failing test of module {number // 4}"),
        Message.assistant(
            "I run the tests.", reasoning=f"First the tests, then the code, {number}.", tool_calls=(shell,)
        ),
        Message.tool(shell, output),
        Message.assistant("", tool_calls=(write,)),
        Message.tool(write, "wrote 2 lines"),
        Message.assistant(f"Done: attempt {number} repairs the comparison."),
    ]


def fill(home: Path, count: int = 60) -> list[str]:
    """The ids, oldest first. Four attempts each at a task; every second one has a reward."""
    home.mkdir(parents=True, exist_ok=True)
    ids = []
    with Writer(db_path(home)) as writer:
        for number in range(count):
            limit = Outcome(StopReason.MAX_TURNS, Boundary.LIMIT, detail="20 turns")
            trajectory = record(
                writer,
                coding_run(number, 40 if number % 3 == 0 else 6),
                call=model_call(tokens=TRACE if number % 2 else None),
                failed_tools=number % 7 == 3,
                model=("hermes/smollm2", "openai/gpt-5-mini")[number % 2],
                run_id=f"batch-{number // 20}",
                task_id=f"task-{number // 4}",
                metadata={"split": ("train", "eval")[number % 2]} if number % 3 else {},
                sample_index=number % 4,
                outcome=limit if number % 5 == 0 else COMPLETED,
            )
            ids.append(trajectory)
            if number % 2:
                writer.add_reward(Reward(trajectory, number / count, "tests_pass", {}, 1)).result()
        child = record(
            writer,
            [Message.user("Look it up"), Message.assistant("Found.")],
            parent_id=ids[-1],
            relation=Relation.DELEGATE,
        )
        ids.append(child)
        writer.add_rating(
            Rating(new_id(), ids[0], RatingKind.SCORE, 5.0, "ana", 2, comment="good plan")
        ).result()
        writer.add_rating(Rating(new_id(), ids[0], RatingKind.STEP, -1.0, "ana", 3, step_index=4)).result()
    return ids


def keep_adapter(home: Path, policy_id: str) -> None:
    """The files of a policy's adapter, as a promotion finds them in the home."""
    folder = home / "policies" / policy_id / "adapter"
    folder.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).write_text("{}")
