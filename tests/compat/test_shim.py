"""`import atroposlib`, answered by Hermes."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.compat import atropos
from hermes.compat.atropos.names import MODULES, ROOT


@pytest.fixture(autouse=True)
def shim() -> Iterator[None]:
    atropos.install()
    yield
    atropos.uninstall()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_name_of_the_table_is_there(module: str) -> None:
    imported = importlib.import_module(f"{ROOT}.{module}" if module else ROOT)
    for name in MODULES[module]:
        assert getattr(imported, name) is not None
    assert set(MODULES[module]) <= set(dir(imported))


def test_the_names_are_the_ones_that_hermes_itself_uses() -> None:
    from atroposlib.envs.base import BaseEnv, OpenaiConfig  # type: ignore[import-not-found]
    from atroposlib.envs.server_handling.server_manager import APIServerConfig  # type: ignore[import-not-found]

    from hermes.envs import base

    assert BaseEnv is base.BaseEnv
    assert OpenaiConfig is APIServerConfig


def test_a_name_that_never_was_is_an_import_error_that_says_whose() -> None:
    with pytest.raises(ImportError, match="NoSuchThing"):
        from atroposlib.envs.base import NoSuchThing  # type: ignore[import-not-found] # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"atroposlib\.envs\.nothing"):
        importlib.import_module("atroposlib.envs.nothing")


def test_submodules_are_attributes_of_their_packages() -> None:
    import atroposlib  # type: ignore[import-not-found]

    assert atroposlib.envs.base.BaseEnv.__name__ == "BaseEnv"


def test_a_file_finds_the_folder_environments_of_its_project_from_anywhere(tmp_path: Path) -> None:
    folder = tmp_path / "environments" / "community" / "research"
    folder.mkdir(parents=True)
    (folder / "tools.py").write_text("ANSWER = 42\n")
    file = folder / "research_env.py"
    file.write_text("from environments.community.research.tools import ANSWER\n")
    code = (
        "from pathlib import Path\nfrom hermes.compat import atropos\natropos.install()\n"
        "from hermes.envs.cli.run import load_module\n"
        f"print(load_module(Path({str(file)!r})).ANSWER)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path.parent, capture_output=True, text=True)
    assert done.stdout == "42\n", done.stderr


def test_after_uninstalling_the_imports_are_gone() -> None:
    atropos.uninstall()
    assert importlib.util.find_spec("atroposlib") is None


def test_installing_reads_no_heavy_package() -> None:
    code = (
        "import sys; from hermes.compat import atropos; atropos.install(); import atroposlib.envs.base; "
        "from atroposlib.envs.base import BaseEnv, APIServerConfig, ScoredDataGroup; "
        "print([n for n in ('torch', 'transformers', 'openai', 'wandb', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_tool_calls_are_read_as_environments_expect() -> None:
    from atroposlib.utils.tool_call_parser import parse_tool_call  # type: ignore[import-not-found]

    tools = [{"type": "function", "function": {"name": "add"}}]
    said = 'Let me. <tool_call>{"name": "add", "arguments": {"a": "it\'s 1"}}</tool_call>'
    assert parse_tool_call(said, tools) == ("add", {"a": "it's 1"}, False)
    assert parse_tool_call("<tool_call>{'name': 'add', 'arguments': {}}</tool_call>", tools) == (
        "add",
        {},
        False,
    )
    assert parse_tool_call('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', tools)[0] == "-ERROR-"
    assert parse_tool_call("nothing of the kind", tools) == ("-ERROR-", {}, True)
    assert parse_tool_call("<act>[1]</act>", preferred_tags=["act"]) == ("-ERROR-", {}, True)


def test_the_best_of_several_is_the_first_of_the_best() -> None:
    from atroposlib.utils.best_of_n_selection import select_best_index  # type: ignore[import-not-found]

    assert select_best_index([1, 3, 3], [5, 9, 2]) == 2
    assert select_best_index([3, 3], [1, 1]) == 0
    assert select_best_index([1, 2], [1, 1], primary_higher_is_better=False) == 0
    with pytest.raises(ValueError, match="as many"):
        select_best_index([1], [])
