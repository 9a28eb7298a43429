"""The reference has every metric, variable and file that the code has, and nothing that it does not have."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import environment_variables as variables
import pytest
from metric_table import SECTIONS, undescribed

from hermes.engine.server.tinker import service as engine
from hermes.rollouts.core import metrics as api
from tests.docs.pages import ROOT
from tests.docs.scripts import load_script

SOURCE = ROOT / "src/hermes"
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if "skills/library" not in str(path)]
_OURS = re.compile(r"(HERMES|TINKER|WANDB|HF|RL|OPENAI|OPENROUTER|BRAVE|TAVILY)_[A-Z_]+")
_NOT_FOR_USERS = {
    "OPENAI_AGENTS_DISABLE_TRACING",  # set for programs in rollouts
    "HERMES_BASE_URL",  # what a program in the training loop gets (howto/own-agent.md)
    "HERMES_MODEL",
    "ATROPOS_PROXY_URL",  # refused
    "GIT_CONFIG_COUNT",  # of git, set for commands in a sandbox
    "HERMES_COMMAND",  # marks the processes of a sandbox
    "HERMES_RECORDING_KEY",  # from hermes record to codex
    "HERMES_ROLLOUT_KEY",  # from an environment to its worker
    "HOME",
    "LANG",
    "NCCL_SOCKET_IFNAME",  # of NCCL, set for the processes of one model
    "OPENCODE_CONFIG_CONTENT",  # of the agents that are recorded
    "PATH",
    "PI_CODING_AGENT_DIR",
    "PYTHONSAFEPATH",  # of Python, set for processes that Hermes starts
    "SHELL",
    "TOKENIZERS_PARALLELISM",
}
_TRAINING_METRIC = re.compile(
    r"(train|optim|time|data|reward|rewards|advantages|logprobs|kl|health|probe|proof|eval|sinks|success|critic)/\w+"
)


@dataclass(frozen=True, slots=True)
class SourceTexts:
    """What the tests read out of one file of the source."""

    path: Path
    literals: frozenset[str]
    variables: frozenset[str]
    """Read from the environment."""


@cache
def source_texts() -> list[SourceTexts]:
    return [_read(path) for path in FILES]


def _read(path: Path) -> SourceTexts:
    literals: set[str] = set()
    variables_read: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        name: ast.expr | None = None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            literals.add(node.value)
        elif isinstance(node, ast.Call) and node.args and _is_environ(node.func, ("get", "getenv")):
            name = node.args[0]
        elif isinstance(node, ast.Subscript) and _is_environ(node.value, ("environ",)):
            name = node.slice
        if isinstance(name, ast.Constant):
            variables_read.add(str(name.value))
    variables_read |= {text for text in literals if _OURS.fullmatch(text)}
    return SourceTexts(path, frozenset(literals), frozenset(variables_read))


def _is_environ(node: ast.expr, last: tuple[str, ...]) -> bool:
    """`os.environ`, `environ.get` or `os.getenv`, by the last of its names."""
    if isinstance(node, ast.Name):
        return node.id in last and node.id != "get"
    if not isinstance(node, ast.Attribute) or node.attr not in last:
        return False
    return node.attr != "get" or _is_environ(node.value, ("environ",))


def test_the_table_of_variables_is_what_the_code_reads() -> None:
    read = {name for file in source_texts() for name in file.variables}
    listed = [entry.name for entries in variables.SECTIONS.values() for entry in entries]
    assert len(listed) == len(set(listed))
    assert read - set(listed) == _NOT_FOR_USERS, "a variable without an entry, or one that is no longer read"
    assert set(listed) - read == set(), "listed, and not read"


def test_every_metric_of_the_trainers_has_a_meaning() -> None:
    folders = [SOURCE / "training", SOURCE / "envs", SOURCE / "rl"]
    files = [file for file in source_texts() if any(folder in file.path.parents for folder in folders)]
    names = {text for file in files for text in file.literals if _TRAINING_METRIC.fullmatch(text)}
    assert len(names) > 60
    assert undescribed(names) == set()


def test_every_metric_with_a_meaning_is_written_somewhere() -> None:
    texts = {text for file in source_texts() for text in file.literals}
    for entry in (entry for entries in SECTIONS.values() for entry in entries):
        fixed = re.split(r"[A-Z]", entry.name)[0]  # what stands before a name that varies
        head, _, tail = fixed.partition("/")
        # Some are written as a prefix and a name of their own: f"eval/{name}".
        assert any(text == fixed or (fixed != entry.name and text.startswith(fixed)) for text in texts) or (
            f"{head}/" in texts and any(text.startswith(tail) for text in texts)
        ), entry.name


@pytest.mark.parametrize(("folder", "meanings"), [("rollouts", api.HELP), ("engine/server", engine.HELP)])
def test_every_counter_of_a_server_has_a_meaning(folder: str, meanings: dict[str, str]) -> None:
    files = [file for file in source_texts() if SOURCE / folder in file.path.parents]
    counters = {text for file in files for text in file.literals if re.fullmatch(r"[a-z_]+_total", text)}
    assert len(counters) > 5
    assert counters == {name for name in meanings if name.endswith("_total")}


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "docs/results").rglob("*metrics.jsonl")),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_what_recorded_runs_wrote_has_a_meaning(path: Path) -> None:
    names = {name for line in path.read_text().splitlines() for name in json.loads(line)}
    assert len(names) > 10
    assert undescribed(names - {"step", "time_s"}) == set()


def test_a_metric_without_a_meaning_is_noticed() -> None:
    assert undescribed({"health/mood", "reward/mean"}) == {"health/mood"}
    assert undescribed({"stop/max_turns", "eval/rewards/accuracy"}) == set()


def test_every_file_of_the_page_is_named_in_the_code() -> None:
    texts = {text for file in source_texts() for text in file.literals}
    names = load_script("reference_data").file_names()
    assert len(names) > 15
    assert [name for name in names if name.rstrip("/") not in texts] == []


def test_the_python_page_has_no_address_of_memory() -> None:
    page = (ROOT / "docs/reference/python.md").read_text("utf-8")
    assert re.search(r"0x[0-9a-f]{6}", page) is None
    assert "### RewardContext" in page and "### HermesAgentBaseEnv" in page
