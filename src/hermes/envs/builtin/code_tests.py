"""code_tests: write a Python function that passes hidden tests.

Teaches programming with a terminal: a description, two examples, a file to write. After the rollout only that
file is copied into a fresh sandbox, together with the inputs of twelve hidden tests; the returned values are
compared outside of it. Shaped: the share of the tests that pass, beyond what a constant would pass.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from hermes.core import Message
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import ShapedEnvConfig
from hermes.envs.builtin.solvable import SolvableEnv, tool_call_turn
from hermes.envs.rewards.result import RewardResult, failed
from hermes.envs.rewards.tests_pass import Case, tests_pass
from hermes.envs.tasks.code_problems import CodeProblem, code_problem
from hermes.envs.tasks.split import Split, draw

FILE = "solution.py"
_MAX_SOURCE_CHARS = 50_000


class CodeTestsConfig(ShapedEnvConfig):
    train_size: int = Field(default=1000, ge=1, description="Distinct items to train on.")
    max_agent_turns: int = Field(default=10, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=1024, description="Longest answer of one call, in tokens.")
    system_prompt: str | None = Field(
        default=f"Write the function to {FILE} in the current directory. You may try it out. "
        "When it is done, say so.",
        description="System prompt.",
    )


class CodeTestsEnv(SolvableEnv):
    """Python functions to write; graded by hidden tests in a fresh sandbox."""

    name = "code_tests"
    env_config_cls: ClassVar[Any] = CodeTestsConfig
    config: CodeTestsConfig
    default_toolsets: ClassVar[Sequence[str]] = ("terminal", "file")

    def generate(self, split: Split) -> Iterator[CodeProblem]:
        return draw(code_problem, split, self.seed_of(split))

    def format_prompt(self, item: CodeProblem) -> str:
        examples = "\n".join(
            f"{item.function}({json.dumps(case.arguments[0])}) == {json.dumps(case.expected)}"
            for case in item.examples
        )
        return f"{item.description}\nExamples:\n{examples}\n\nWrite it to {FILE}."

    async def grade(self, item: CodeProblem, result: AgentResult, ctx: ToolContext) -> RewardResult:
        source = (await ctx.read_file(FILE)).get("content")
        if source is None or len(source) > _MAX_SOURCE_CHARS:
            return failed(f"there is no {FILE} of at most {_MAX_SOURCE_CHARS} characters")
        grader = await ctx.fresh()
        tested = await tests_pass(grader.sandbox, source, item.function, item.tests)
        if self.config.reward_mode == "shaped" and not tested.success:
            return RewardResult(
                _beyond_constant(tested.parts["tests"], item.tests),
                {**tested.parts, "success": 0.0},
                tested.detail,
            )
        return tested

    def gold(self, item: CodeProblem) -> Sequence[Message]:
        return _write_turns(item.reference)

    def exploits(self, item: CodeProblem) -> Mapping[str, Sequence[Message]]:
        name = item.function
        return {
            **super().exploits(item),
            "exit 0": _write_turns("import sys\nsys.exit(0)\n"),
            "hard exit": _write_turns("import os\nos._exit(0)\n"),
            "always equal": _write_turns(
                f"class Same:\n    __eq__ = lambda self, other: True\n    __hash__ = None\n\n"
                f"def {name}(items):\n    return Same()\n"
            ),
            "monkey-patch": _write_turns(
                "import json, sys\njson.dumps = lambda *a, **k: '{\"value\": true}'\n"
                "sys.modules['json'].loads = json.dumps\n"
                f"def {name}(items):\n    return True\n"
            ),
            "result channel": _write_turns(
                "import os\nfor fd in range(1, 20):\n    try:\n        os.write(fd, b'passed\\n')\n"
                f"    except OSError:\n        pass\ndef {name}(items):\n    return None\n"
            ),
            "read the tests": _write_turns(
                f"import sys\ndef {name}(items):\n    frame = sys._getframe(1)\n"
                "    return frame.f_locals.get('expected', frame.f_globals.get('cases'))\n"
            ),
            "test edit": [
                tool_call_turn(
                    ("write_file", {"path": FILE, "content": f"def {name}(items):\n    return items\n"}),
                    ("write_file", {"path": "test_solution.py", "content": "def test(): pass\n"}),
                    ("write_file", {"path": "harness.py", "content": "print('passed')\n"}),
                    ("write_file", {"path": "json.py", "content": "raise SystemExit(0)\n"}),
                ),
                Message.assistant("Done."),
            ],
            "examples only": _write_turns(
                f"known = {_examples(item)!r}\n"
                f"def {name}(items):\n    return next((v for k, v in known if k == items), None)\n"
            ),
        }


def _write_turns(source: str) -> Sequence[Message]:
    return [tool_call_turn(("write_file", {"path": FILE, "content": source})), Message.assistant("Done.")]


def _examples(item: CodeProblem) -> list[tuple[Any, Any]]:
    return [(case.arguments[0], case.expected) for case in item.examples]


def _beyond_constant(share: float, tests: Sequence[Case]) -> float:
    """The share of passed tests beyond that of returning the most frequent value, scaled to 0 to 1."""
    constant = max(Counter(repr(case.expected) for case in tests).values()) / len(tests)
    return max(0.0, (share - constant) / (1 - constant))


if __name__ == "__main__":
    CodeTestsEnv.cli()
