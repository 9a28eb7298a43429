"""Which files are compared, and how each is started."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from answers import ANSWERS_OF

_TOKEN_SERVERS = frozenset({"t1_env.py"})
"""Files that ask for token ids in another file."""
_GROUP_SIZES = {"philosophical_rlaif_env.py": 2, "rlaif_server.py": 2, "wikipedia_article_creator.py": 1}
"""Files that make groups of one size, whatever the settings say."""
_SEVERAL_SERVERS = (
    "community/meteorology_forecast/meteorology_env.py",
    "community/wikipedia_research/tool_calling_server.py",
    "mcp_env.py",
)
"""Files whose default is a list of servers: they are set by --config, not by --openai.*."""
_JUDGE = ("--env.judge_base_url=ROOT/v1", "--env.judge_model_name=scripted")
_FLAGS = {
    # Its settings draw a seed when they are built, which the original does more often.
    "answer_format_environment.py": ("--env.seed=7",),
    "arena_hard_environment.py": _JUDGE,
    "refusalbench_environment.py": _JUDGE,
    "mixeval_eval.py": (*_JUDGE, "--env.judge_rate_limit_delay=0"),
    "mtbench_eval.py": (*_JUDGE, "--env.judge_rate_limit_delay=0"),
    # Its rows are conversations of several calls in a row.
    "tool_use_multiturn_server.py": ("--env.scenario_category=multistep",),
    "simpleqa_eval.py": ("--env.use_llm_judge=true", *_JUDGE),
}
"""Flags of single files; ROOT is the address of the scripted model."""


@dataclass(frozen=True, slots=True)
class EnvironmentFile:
    name: str
    """The path below `environments`."""
    is_evaluation: bool
    server_type: str = "openai"
    group_size: int | None = None
    flags: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    """Answers of the scripted model for this file alone."""
    several_servers: bool = False

    def modes(self, wanted: Sequence[str]) -> list[str]:
        own = ("evaluate",) if self.is_evaluation else ("process", "serve", "evaluate")
        return [mode for mode in own if mode in wanted]


def find_files(checkout: Path) -> Iterator[EnvironmentFile]:
    """Every file that defines an environment, by name."""
    root = checkout / "environments"
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if "/test" not in name and _defines_environment(path):
            evaluation = name.startswith("eval_environments/")
            text = path.read_text(encoding="utf-8")
            has_tokens = "managed_server" in text or path.name in _TOKEN_SERVERS
            server = "sglang" if has_tokens else "openai"
            yield EnvironmentFile(
                name,
                evaluation,
                server,
                _GROUP_SIZES.get(path.name),
                _flags(path.name, evaluation, text),
                ANSWERS_OF.get(path.name, ()),
                name in _SEVERAL_SERVERS,
            )


def _flags(name: str, evaluation: bool, text: str) -> tuple[str, ...]:
    flags = _FLAGS.get(name, ())
    # With thinking on, the helper of most evaluations prints a prompt that is not set, and fails.
    if evaluation:
        flags = ("--env.thinking_mode=false", *flags)
    # By default 64 processes share the cores, and their answers exceed the time limit of `math_verify`.
    if "max_math_workers: int" in text:
        flags = ("--env.max_math_workers=1", *flags)
    return flags


def _defines_environment(path: Path) -> bool:
    """Whether it has a class that derives from a class of environments, and calls `cli()`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False
    calls = any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cli"
        for node in ast.walk(tree)
    )
    return calls and any(isinstance(node, ast.ClassDef) and node.bases for node in ast.walk(tree))
