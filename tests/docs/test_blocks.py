"""Every block of code of the pages is executed, validated, or marked as text.

`sh`: every command, option, setting and field exists. `python`: it parses, and what it imports from Hermes is
there. `yaml`: valid settings, or tested where the page's format is tested. `json`: it parses. `text`: output,
dialogues and pictures; those beneath a mark are compared with what the command prints (test_outputs.py).
"""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from environment_variables import SECTIONS

from hermes.config.validate import validate
from tests.docs.pages import PAGES, ROOT, Block, blocks, indented_blocks, shell_lines, spans
from tests.docs.shell_lines import line_problems, mention_problem, option_problem, setting_problem

CHECKED = [*PAGES, ROOT / "CONTRIBUTING.md"]
LANGUAGES = ("json", "python", "sh", "text", "yaml")
OTHER_OPTIONS = {
    "--credit rollout": "of scripts that recorded the results",
    "--keep-freed": "of bench/memory.py",
    "--num-cpus 0": "of ray",
    "--option": "a word for any option",
    "--page docs/compat.md": "of scripts/atropos",
}
YAML_OF_OTHERS = {"datasets": "Axolotl: tests/batch/test_training_formats.py"}
"""The first key of a block → whose configuration it is, and which test reads it."""
OF_TESTS = {"HERMES_AGENTS_TABLE", "HERMES_KILLS", "HERMES_SOAK_S", "HERMES_TEST_ATROPOS_CHECKOUT"}
"""Variables that only tests and benchmarks read."""
OF_PROGRAMS = {"HERMES_BASE_URL", "HERMES_REWARD_FILE"}
"""Variables that a program in the training loop, and the script that scores it, are given."""
_PROGRAMS = ("curl ", "hermes ", "make ", "pip ", "python ")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _block_problems(block: Block) -> Iterator[str]:
    match block.language:
        case "sh":
            for line in shell_lines(block):
                yield from line_problems(line)
        case "python":
            yield from _python_problems(block.text)
        case "yaml":
            yield from _yaml_problems(block.text)
        case "json":
            try:
                json.loads(block.text)
            except ValueError as error:
                yield f"not JSON: {error}"
        case "text":
            return
        case other:
            yield f"a block in the language {other!r}: {block.text[:60]!r}"


def _python_problems(text: str) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        yield f"{error.msg}: {error.text}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hermes":
            module = importlib.import_module(node.module or "")
            yield from (
                f"{node.module} has no {name.name}" for name in node.names if not hasattr(module, name.name)
            )


def _yaml_problems(text: str) -> Iterator[str]:
    data = yaml.safe_load(text)
    if next(iter(data)) in YAML_OF_OTHERS:
        return
    yield from (problem.message for problem in validate(data)[1])


def _page_problems(page: Path) -> Iterator[str]:
    if indented_blocks(page):
        yield "an indented block: fence it, so that its language is known"
    generated = page.read_text("utf-8").startswith("<!-- Written by")
    for block in blocks(page):
        if not (generated and block.language == "python"):
            yield from _block_problems(block)


def test_every_block_is_validated_or_text() -> None:
    assert [(_name(page), problem) for page in CHECKED for problem in _page_problems(page)] == []


def _text_problems(page: Path) -> Iterator[tuple[str, str]]:
    """What the text names that does not exist, with the reason."""
    code = spans(page)
    options = [span for span in code if re.match(r"--[a-z]", span) and span not in OTHER_OPTIONS]
    settings = [span for span in code if re.fullmatch(r"[a-z_]+\.[a-z_.]+", span)]
    problems = [
        *((span, mention_problem(span)) for span in code if span.startswith(_PROGRAMS)),
        *((span, option_problem(span)) for span in options),
        *((span, setting_problem(span)) for span in settings),
    ]
    yield from ((span, problem) for span, problem in problems if problem is not None)


def test_every_command_option_and_setting_in_the_text_exists() -> None:
    assert [(_name(page), *problem) for page in CHECKED for problem in _text_problems(page)] == []


def test_every_variable_of_hermes_in_the_pages_exists() -> None:
    names = {variable.name for variables in SECTIONS.values() for variable in variables}
    mentioned = {
        name for page in CHECKED for name in re.findall(r"\bHERMES_[A-Z_]+[A-Z]\b", page.read_text("utf-8"))
    }
    assert {name for name in mentioned - names - OF_TESTS - OF_PROGRAMS if "__" not in name} == set()


def test_what_does_not_exist_is_noticed() -> None:
    assert [bool(line_problems(line)) for line in GOOD_LINES] == [False] * len(GOOD_LINES)
    assert [bool(line_problems(line)) for line in BAD_LINES] == [True] * len(BAD_LINES)
    assert option_problem("--no-such-option 3") and setting_problem("limits.max_turn")
    assert list(_python_problems("from hermes.core import Nothing\n"))
    assert list(_yaml_problems("rl:\n  modell: x\n"))
    assert list(_block_problems(Block("", "hermes doctor\n")))


def test_an_indented_block_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\ntext\n\n    hermes doctor\n\n- item\n\n    more of the item\n\n```sh\n\n    x\n```\n"
    )
    assert indented_blocks(page) == ["    hermes doctor"]


GOOD_LINES = (
    "hermes skills learn RUN [--name N] [--output DIR]",
    "cat report.txt | hermes -q Summarise",
    "CUDA_VISIBLE_DEVICES=1 hermes rl start --env calculator --set seed=1",
    "hermes env process calculator --env.total_steps 2",
    "pip install 'hermes-research[ray]'",
    "make docs",
)
BAD_LINES = (
    "cat report.txt | hermes -q Summarise --colour",
    "hermes rl start --env calculator --set sead=1",
    "hermes env process calculator --env.total_stepz 2",
    "hermes config set limits.max_turn 3",
    "hermes train sft rows.jsonl --base-url managed",
    "pip install 'hermes-research[rays]'",
    "make documents",
    "python bench/nothing.py",
    "python -m hermes.nothing",
    "curl http://127.0.0.1:8001/v1/x -d '{model: 3}'",
    "hremes doctor",
    "hermes skills learn RUN [--name N] [--out DIR]",
    "hermes skills learn RUN [--nam N]",
)
