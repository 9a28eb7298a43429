"""Environments are found by reading files, and no file is run for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hermes.envs.cli.discover import BUILT_IN, environment_folders, find_environments, locate
from hermes.errors import UsageError

FILES = {
    "direct.py": '''
"""A file about one thing."""
import sys
sys.modules["ran_direct"] = sys
from atroposlib.envs.base import BaseEnv, BaseEnvConfig

class Direct(BaseEnv):
    """Teaches directly.

    More words.
    """
    name: str = "straight"

class Helper:
    pass
''',
    "pack/__init__.py": "",
    "pack/middle.py": """
import atroposlib.envs.base as base

class Middle(base.BaseEnv):
    pass
""",
    "pack/last.py": '''
"""The last in line."""
from .middle import Middle as Parent

try:
    import missing_package
except ImportError:
    missing_package = None

if True:
    class Last(Parent):
        name = "last"
''',
    "elsewhere.py": """
from gymnasium import BaseEnv
from typing import Generic, TypeVar
T = TypeVar("T")

class Other(BaseEnv):
    pass

class Loop(Loop2):
    pass

class Loop2(Loop):
    pass
""",
    "agents.py": """
from abc import abstractmethod
from environments.hermes_base_env import HermesAgentBaseEnv

class Base(HermesAgentBaseEnv):
    @abstractmethod
    def generate(self): ...

class Agent(Base):
    def generate(self): ...
""",
    "broken.py": "class Broken(BaseEnv:\n",
    "nul.py": "x = '\0'\n",
    ".hidden/secret.py": "from atroposlib.envs.base import BaseEnv\nclass Hidden(BaseEnv): ...\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "envs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "envs"


def test_direct_and_indirect_heirs_are_found_and_nothing_is_imported(folder: Path) -> None:
    found = find_environments([folder])
    rows = {each.class_name: (each.name, each.path.name, each.description) for each in found.environments}
    assert rows == {
        "Direct": ("straight", "direct.py", "Teaches directly."),
        "Middle": ("middle", "middle.py", ""),
        "Last": ("last", "last.py", "The last in line."),
        "Agent": ("agents", "agents.py", ""),
    }
    assert "ran_direct" not in sys.modules
    assert sorted(each.path.name for each in found.broken) == ["broken.py", "nul.py"]
    assert all(each.reason for each in found.broken)


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert find_environments([tmp_path / "none"]).environments == ()


def test_the_built_in_environments_are_listed_with_what_they_teach(tmp_path: Path) -> None:
    found = find_environments(environment_folders(tmp_path))
    assert found.broken == ()
    assert {"calculator"} <= {each.name for each in found.environments}
    assert all(each.path.is_relative_to(BUILT_IN) and each.description for each in found.environments)


def test_environments_of_the_users_own_folder_are_listed_beside_the_built_in_ones(folder: Path) -> None:
    home = folder.parent / "home"
    home.mkdir()
    (home / "environments").symlink_to(folder)
    names = {each.name for each in find_environments(environment_folders(home)).environments}
    assert {"calculator", "straight", "last"} <= names
    assert locate("straight", environment_folders(home)).name == "direct.py"


def test_an_environment_is_named_by_path_or_by_name(folder: Path) -> None:
    folders = environment_folders(folder.parent, [folder])
    assert locate(str(folder / "direct.py"), folders) == folder / "direct.py"
    assert locate("straight", folders) == folder / "direct.py"
    assert locate("Last", folders).name == "last.py"
    with pytest.raises(UsageError, match="strait") as caught:
        locate("strait", folders)
    assert "straight" in caught.value.hint
    with pytest.raises(UsageError, match="no environment file"):
        locate("gone.py", folders)


def test_the_names_of_the_reference_lead_to_the_built_in_environment(folder: Path) -> None:
    for name in ("gsm8k", "gsm8k_tinker", "gsm8k_server"):
        assert locate(name, [BUILT_IN]).stem == "gsm8k"
    own = folder / "gsm8k_tinker.py"
    own.write_text("from atroposlib.envs.base import BaseEnv\n\nclass Mine(BaseEnv): ...\n")
    assert locate("gsm8k_tinker", [BUILT_IN, folder]) == own.resolve(), "the exact name comes first"
    with pytest.raises(UsageError, match="there is no environment '_tinker'"):
        locate("_tinker", [BUILT_IN])
