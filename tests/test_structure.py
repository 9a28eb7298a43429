"""The structure of the code, held: size, imports and names (AGENTS.md, rules 1, 2, 5 and 6)."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
MOST_LINES = 500
SHORT_FUNCTION = 5
MODEL_ANSWER = "answer"
"""The noun for what a model answers; what an HTTP server sends is a response."""
SLACK = 0.02
"""A package may be this much smaller than its budget; then the budget must fall too."""
BUDGET = {
    "agent": 1178,
    "batch": 5245,
    "cli": 11109,
    "cluster": 229,
    "compat": 2853,
    "config": 2706,
    "core": 1800,
    "data": 11733,
    "disk": 480,
    "engine": 19636,
    "envs": 17855,
    "gateway": 4385,
    "hermes": 126,
    "models": 5324,
    "policies": 2560,
    "quickstart": 1751,
    "ratings": 1105,
    "rl": 9125,
    "rollouts": 3754,
    "safety": 2070,
    "sandbox": 4498,
    "serving": 937,
    "skills": 4024,
    "store": 4194,
    "tools": 4468,
    "training": 9574,
    "web": 5011,
}
"""Lines of each package. A budget may only fall; a commit that raises one says why."""


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", ROOT / "scripts" / "structure.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


structure = load_script()


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert structure.cycles(structure.import_graph(structure.sources(ROOT))) == []


def test_no_test_module_is_a_library_for_others() -> None:
    """Helpers that several modules share are in modules of their own, or in a conftest."""
    imports = re.compile(r"^\s*(?:from|import) +tests[\w.]*\.test_\w+", re.MULTILINE)
    importers = [
        path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py") if imports.search(path.read_text())
    ]
    assert importers == []


def test_variables_name_the_noun() -> None:
    vague = [
        f"{binding.path.relative_to(ROOT)}:{binding.line} {binding.name}"
        for binding in structure.bindings(list(structure.sources(ROOT).values()))
        if binding.name in structure.VAGUE - {MODEL_ANSWER} and binding.function_lines > SHORT_FUNCTION
    ]
    assert vague == []


def test_no_docstring_is_a_fragment() -> None:
    """Sentences that begin with "Of" or "What" leave the reader to find the subject."""
    fragments = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str) and node.value.value.startswith(("Of ", "What "))
    ]
    assert fragments == []


def test_each_package_keeps_to_its_budget_of_lines() -> None:
    """What comes in is paid for by what goes out."""
    lines = structure.package_lines(ROOT)
    over = {name: count for name, count in lines.items() if count > BUDGET.get(name, 0)}
    assert over == {}, "remove as much as you added, or raise the budget and say why in the commit"
    under = {
        name: lines.get(name, 0) for name, most in BUDGET.items() if lines.get(name, 0) < most * (1 - SLACK)
    }
    assert under == {}, "lower the budget to these counts"


def test_a_file_is_read_in_one_sitting() -> None:
    sizes = {
        path.relative_to(ROOT): len(path.read_text().splitlines()) for path in (ROOT / "src").rglob("*.py")
    }
    assert {str(path): lines for path, lines in sizes.items() if lines > MOST_LINES} == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(a):\n    found = a\n    return found\n", ["a", "found"]),
        (
            "def f():\n    for one in ():\n        pass\n    with x() as held:\n        pass\n",
            ["one", "held"],
        ),
        ("def f():\n    def g(told):\n        return told\n    return g\n", ["told"]),
        ("found = 1\n", []),
    ],
)
def test_the_bindings_of_functions_are_counted(source: str, expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert sorted(binding.name for binding in structure.bindings([path])) == sorted(expected)


def test_a_cycle_is_reported_with_its_modules() -> None:
    graph = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"a"}), "d": frozenset({"a"})}
    assert structure.cycles(graph) == [["a", "b", "c"]]
