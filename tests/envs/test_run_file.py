"""Loading a file that lies anywhere and imports in any way."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.envs.cli.run import EnvironmentFileError, load_class

ENVIRONMENT = """
from hermes.envs.base import BaseEnv
{imports}

class {name}(BaseEnv):
    async def get_next_item(self):
        return WORD
"""


@pytest.fixture(autouse=True)
def imports(tmp_path: Path) -> Iterator[None]:
    """What a test made importable is gone after it."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    made = {each.stem for each in tmp_path.rglob("*")}
    for name in [name for name in sys.modules if name.partition(".")[0] in made]:
        del sys.modules[name]


def write(folder: Path, name: str, imports: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(ENVIRONMENT.format(imports=imports, name=name.title().replace("_", "")))
    return path


def test_a_file_named_like_its_folder_imports_what_lies_beside_it(tmp_path: Path) -> None:
    file = write(tmp_path / "maze_env", "maze_env", "from .words import WORD\nimport spoken")
    (file.parent / "words.py").write_text("WORD = 'left'\n")
    (file.parent / "spoken.py").write_text("")
    cls = load_class(file)
    assert cls.__module__ == "maze_env.maze_env"
    assert inspect.getmodule(cls) is sys.modules["maze_env.maze_env"]
    assert "get_next_item" in inspect.getsource(cls), "torch looks its callers up in this way"


def test_relative_imports_may_reach_above_the_files_folder(tmp_path: Path) -> None:
    file = write(tmp_path / "games" / "chess", "board_env", "from ..common import WORD")
    (tmp_path / "games" / "common.py").write_text("WORD = 'e4'\n")
    assert load_class(file).__module__ == "games.chess.board_env"


def test_a_file_that_is_no_python_is_said_to_be_none_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken_env.py"
    file.write_text("x = 1\nclass (:\n")
    with pytest.raises(EnvironmentFileError, match=r"broken_env\.py:2 cannot be imported: SyntaxError"):
        load_class(file)
