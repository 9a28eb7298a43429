"""Environments as files: load one, find its class, run it.

A file is loaded as Python would run it: modules in its folder can be imported, and if it is part of a package
(folders with `__init__.py`), or uses relative imports, it is loaded as part of that package. A file that
imports `atroposlib` needs the import shim, which the caller installs.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from hermes.envs.base import BaseEnv
from hermes.envs.modes import commandline
from hermes.errors import HermesError, UsageError
from hermes.safety.author_import import described, importing, line_in, witnessed


class EnvironmentFileError(HermesError):
    """The file cannot be used as an environment."""

    exit_code = 2


def serve_file(path: str | Path, argv: Sequence[str] = ()) -> None:
    run_file(path, "serve", argv)


def process_file(path: str | Path, argv: Sequence[str] = ()) -> None:
    run_file(path, "process", argv)


def evaluate_file(path: str | Path, argv: Sequence[str] = ()) -> None:
    run_file(path, "evaluate", argv)


def run_file(path: str | Path, mode: str, argv: Sequence[str]) -> None:
    """Runs the file's environment; failures are raised. `argv` are the flags after the mode."""
    cls = load_class(path)
    with witnessed(f"{path} ran"):
        if cls.cli.__func__ is BaseEnv.cli.__func__:  # type: ignore[attr-defined]
            commandline.run(cls, [mode, *argv])
            return
        sys.argv = [str(path), mode, *argv]
        cls.cli()


def load_class(path: str | Path) -> type[BaseEnv]:
    """The environment class of a file; if it defines several, the one whose cli() it calls."""
    file = Path(path)
    module = load_module(file)
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, BaseEnv) and not inspect.isabstract(value)
    ]
    defined_here = [cls for cls in classes if cls.__module__ == module.__name__]
    candidates = defined_here or [cls for cls in classes if not cls.__module__.startswith("hermes.")]
    leaves = [
        cls for cls in candidates if not any(heir is not cls and issubclass(heir, cls) for heir in candidates)
    ]
    if len(leaves) > 1:
        leaves = [cls for cls in candidates if cls.__name__ in _classes_run_by(file)] or leaves
    if not leaves:
        raise EnvironmentFileError(
            f"{file} defines no environment.", "Define a class that derives from BaseEnv, with its methods."
        )
    if len(leaves) > 1:
        names = ", ".join(cls.__name__ for cls in leaves)
        raise EnvironmentFileError(
            f"{file} defines several environments: {names}.",
            "Move them to separate files, or call cli() of one of them at the end of the file.",
        )
    return leaves[0]


def load_module(file: Path) -> ModuleType:
    """The file as a module. Modules that it imports are also searched in the folders above it, since it may
    import from the root of the project it comes from."""
    if not file.is_file():
        raise UsageError(f"there is no file {file}.", "Give the path of an environment's .py file.")
    root, name = _import_name(file.resolve())
    folder_of_file = file.resolve().parent
    # A file with its package's name would hide the package from imports in its own folder.
    hides_package = name.partition(".")[0] == file.stem
    for folder in map(str, [root] if hides_package else [folder_of_file, root]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    while True:
        try:
            with importing(file):
                return importlib.import_module(name) if "." in name else _load(file.resolve(), name)
        except ModuleNotFoundError as error:
            if not _add_parent_folder(file.resolve(), error.name or ""):
                raise EnvironmentFileError(
                    f"{file} cannot be imported: {error}.",
                    f"Install the package that provides '{error.name}', or correct the import.",
                ) from error
        except UsageError:
            raise
        except Exception as error:  # an author's file may raise anything when it is imported
            raise EnvironmentFileError(
                f"{file}{line_in(file, error)} cannot be imported: {described(error)}",
                "Run it with python to see more.",
            ) from error


def _add_parent_folder(file: Path, missing: str) -> bool:
    """Adds the folder above the file that contains the missing module to sys.path; False if there is none."""
    package = missing.partition(".")[0]
    for folder in file.parents:
        exists = (folder / package).is_dir() or (folder / f"{package}.py").is_file()
        if package and exists and str(folder) not in sys.path:
            sys.path.append(str(folder))
            importlib.invalidate_caches()
            return True
    return False


def _import_name(file: Path) -> tuple[Path, str]:
    """The folder to import from, and the module's name there."""
    folder, parts = file.parent, [file.stem]
    levels = _relative_levels(file)
    while (folder / "__init__.py").is_file() or len(parts) <= levels:
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _relative_levels(file: Path) -> int:
    """How many folders up its relative imports reach; 0 if it has none."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return 0  # importing the file reports the error better
    return max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)


def _load(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _classes_run_by(file: Path) -> set[str]:
    """Names of the classes whose cli() the file calls."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {
        node.func.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "cli"
        and isinstance(node.func.value, ast.Name)
    }


def has_evaluation(cls: type[BaseEnv]) -> bool:
    """Whether the author of the environment wrote an evaluation, or named held-out tasks for the agent's."""
    from hermes.envs.agent.env import HermesAgentBaseEnv

    if cls.evaluate in (BaseEnv.evaluate, HermesAgentBaseEnv.evaluate):
        return issubclass(cls, HermesAgentBaseEnv) and cls.eval_items is not HermesAgentBaseEnv.eval_items
    return True
