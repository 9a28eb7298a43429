"""Searching real trees in real sandboxes, with hostile patterns and names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes.tools.base import Workbench
from tests.tools.bench import call, error, text

FILES = {
    "src/main.py": "import os\n\ndef main():\n    return 42\n",
    "src/deep/er/util.py": "def helper(x):\n    return x\n",
    "README.md": "# Title\nmain idea\n",
    ".git/config": "main = true\n",
    ".hidden": "main\n",
    "data.bin": "main\0main\n",
}


@pytest.fixture(autouse=True)
def tree(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    for name, content in FILES.items():
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return workspace


async def test_matching_lines_come_in_path_order_with_their_numbers(bench: Workbench) -> None:
    assert await text(bench, "search_files", pattern="main") == (
        ".hidden:1:main\nREADME.md:2:main idea\nsrc/main.py:3:def main():"
    )


async def test_expressions_are_those_that_models_write(bench: Workbench) -> None:
    assert await text(bench, "search_files", pattern=r"return \d+$") == "src/main.py:4:    return 42"
    assert await text(bench, "search_files", pattern=r"def (main|helper)\(\w*\)", path="src") == (
        "src/deep/er/util.py:1:def helper(x):\nsrc/main.py:3:def main():"
    )


async def test_a_glob_and_a_path_narrow_the_search(bench: Workbench) -> None:
    assert await text(bench, "search_files", pattern="main", file_glob="*.md") == "README.md:2:main idea"
    assert await text(bench, "search_files", pattern="return", path="src/deep") == (
        "src/deep/er/util.py:2:    return x"
    )
    assert (
        await text(bench, "search_files", pattern="main", path="src/main.py") == "src/main.py:3:def main():"
    )


async def test_git_and_scratch_directories_are_found_only_by_name(bench: Workbench) -> None:
    assert await text(bench, "search_files", pattern="main = true") == "no matches"
    assert await text(bench, "search_files", pattern="main", path=".git") == ".git/config:1:main = true"


async def test_files_are_found_by_name_and_by_path(bench: Workbench) -> None:
    assert (
        await text(bench, "search_files", pattern="*.py", target="files")
        == "src/deep/er/util.py\nsrc/main.py"
    )
    assert await text(bench, "search_files", pattern="src/**/*.py", target="files") == (
        "src/deep/er/util.py\nsrc/main.py"
    )
    assert await text(bench, "search_files", pattern="deep/*/util*", target="files") == "src/deep/er/util.py"
    assert await text(bench, "search_files", pattern="*.rs", target="files") == "no matches"


async def test_the_limit_is_kept_and_said(bench: Workbench) -> None:
    await bench.sandbox.write_file("many", b"hit\n" * 500)
    shown = (await text(bench, "search_files", pattern="hit", limit=3)).split("\n")
    assert shown == [
        "many:1:hit",
        "many:2:hit",
        "many:3:hit",
        "… more than 3 results; narrow the search or raise limit",
    ]
    assert len((await text(bench, "search_files", pattern="hit")).split("\n")) == 101


async def test_a_line_of_a_megabyte_is_clipped(bench: Workbench) -> None:
    await bench.sandbox.write_file("wide", b"hit" + b"x" * 1_000_000)
    assert len(await text(bench, "search_files", pattern="hit")) <= 300


async def test_a_broken_expression_is_bad_arguments(bench: Workbench) -> None:
    for pattern in ("(main", "[z", "a**b", "*(?"):
        kind, message = await error(bench, "search_files", pattern=pattern)
        assert (kind, message.startswith("bad pattern: ")) == ("bad_arguments", True), message


async def test_a_missing_path_is_named(bench: Workbench) -> None:
    for target in ("content", "files"):
        kind, message = await error(bench, "search_files", pattern="x", path="no/such", target=target)
        assert (kind, message) == ("bad_arguments", "'no/such' is not a usable path: it does not exist")


HOSTILE = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "-f /etc/passwd",
    "--include=x",
    "a\nb",
    "\\",
    "-",
    "x' -exec touch pwned ';",
]


async def test_no_argument_reaches_a_shell_as_code(bench: Workbench) -> None:
    for hostile in HOSTILE:
        await call(bench, "search_files", pattern=hostile)
        await call(bench, "search_files", pattern=hostile, target="files")
        await call(bench, "search_files", pattern="main", file_glob=hostile, path=hostile)
    assert await text(bench, "search_files", pattern="pwned", target="files") == "no matches"


async def test_odd_names_are_searched_like_others(bench: Workbench) -> None:
    for number, name in enumerate(("-rf", "a b'c\"d", "$(x)", "ü")):
        await bench.sandbox.write_file(f"{name}/file", f"needle{number}\n".encode())
        found = f"{name}/file:1:needle{number}"
        assert await text(bench, "search_files", pattern=f"needle{number}") == found
        assert await text(bench, "search_files", pattern="needle", path=name) == found


async def test_links_are_not_followed(bench: Workbench, tree: Path) -> None:
    (tree.parent / "outside").mkdir()
    (tree.parent / "outside" / "secret").write_text("needle\n")
    (tree / "link").symlink_to(tree.parent / "outside")
    (tree / "file-link").symlink_to(tree.parent / "outside" / "secret")
    assert await text(bench, "search_files", pattern="needle") == "no matches"
