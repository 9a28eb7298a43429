"""Finds environments by parsing files, without importing them.

A class is an environment if it derives, directly or through classes of other files, from a base class of
Hermes or Atropos, and declares no abstract method. A file that cannot be parsed is listed as broken.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hermes.core import JSONObject
from hermes.core.names import did_you_mean, nearest
from hermes.errors import UsageError

BUILT_IN = Path(__file__).parents[1] / "builtin"
_ROOTS = frozenset(
    {"BaseEnv", "HermesAgentBaseEnv", "BaseLanguageEnv", "TeacherDistillationEnv", "VerifiersEnv"}
)
_BASE_PACKAGES = ("atroposlib", "hermes", "environments")
"""Packages that export the base classes; an environment may also import them relatively."""
_ENDINGS = ("_tinker", "_server", "_env", "_environment")
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    name: str
    """Its `name` attribute, or the file's name."""
    class_name: str
    path: Path
    line: int
    description: str
    """The first line of its docstring, or of the file's."""

    def to_json(self) -> JSONObject:
        return {
            "name": self.name,
            "class_name": self.class_name,
            "file_path": str(self.path),
            "line": self.line,
            "description": self.description,
        }


class BrokenFile(NamedTuple):
    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Discovery:
    """The environments of some folders, and the files that could not be parsed."""

    environments: tuple[EnvironmentInfo, ...]
    broken: tuple[BrokenFile, ...]


def environment_folders(home: Path, extra: Sequence[Path] = ()) -> list[Path]:
    """Folders that are searched: the built-in environments, the user's, and extra ones."""
    return [BUILT_IN, home / "environments", *extra]


def find_environments(folders: Iterable[Path]) -> Discovery:
    """The environments of these folders and files, in order. Folders that do not exist are ignored."""
    modules: list[_Module] = []
    broken: list[BrokenFile] = []
    for path in dict.fromkeys(path.resolve() for folder in folders for path in _files(folder)):
        try:
            modules.append(_Module(path, ast.parse(path.read_bytes(), str(path))))
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            broken.append(BrokenFile(path, f"{type(error).__name__}: {error}"))
    hierarchy = _ClassHierarchy(modules)
    environments = [
        _describe(module, cls)
        for module in modules
        for cls in module.classes.values()
        if hierarchy.is_environment(module, cls) and not _is_abstract(cls)
    ]
    return Discovery(tuple(environments), tuple(broken))


def locate(reference: str, folders: Sequence[Path]) -> Path:
    """The file of an environment, given its path or its name."""
    path = Path(reference).expanduser()
    if path.suffix == ".py" or path.exists():
        if not path.is_file():
            raise UsageError(
                f"there is no environment file {path}.", "'hermes env list' shows all environments."
            )
        return path
    environments = find_environments(folders).environments
    listed = find_listed(reference, environments)
    if listed is not None:
        return listed.path
    close = nearest(reference, [env.name for env in environments])
    hint = did_you_mean(close, "'hermes env list' shows all environments.")
    raise UsageError(f"there is no environment '{reference}'.", hint)


def find_listed(reference: str, environments: Sequence[EnvironmentInfo]) -> EnvironmentInfo | None:
    """The environment of that name, class or file name; the last one where several fit."""
    for name in _name_variants(reference):
        matches = [env for env in environments if name in (env.name, env.class_name, env.path.stem)]
        if matches:
            return matches[-1]
    return None


def _name_variants(reference: str) -> Iterator[str]:
    """The name, then the name without an ending that Atropos's files have: gsm8k_tinker is gsm8k."""
    yield reference
    for ending in _ENDINGS:
        if reference.endswith(ending) and reference != ending:
            yield reference.removesuffix(ending)


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not any(part in _SKIPPED or part.startswith(".") for part in parts):
            yield path


class _Base(NamedTuple):
    """A base class as a file names it."""

    module: str | None
    """The module that the file imports it from; None if the file defines it, or imports it indirectly."""
    name: str
    relative: bool = False


class _Module:
    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.doc = ast.get_docstring(tree) or ""
        self.classes = {node.name: node for node in _top_level(tree.body) if isinstance(node, ast.ClassDef)}
        self._imports = dict(_imports(tree))

    def bases(self, cls: ast.ClassDef) -> list[_Base]:
        return [base for node in cls.bases if (base := self._base(node)) is not None]

    def _base(self, node: ast.expr) -> _Base | None:
        if isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name):
            return self._imports.get(node.id, _Base(None, node.id))
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            imported = self._imports.get(owner.partition(".")[0])
            return _Base(imported.module if imported else owner, node.attr)
        return None


class _ClassHierarchy:
    """The base classes of all classes, across files."""

    def __init__(self, modules: Sequence[_Module]) -> None:
        self._results: dict[tuple[Path, str], bool] = {}
        self._defined: dict[str, list[_Module]] = {}
        for module in modules:
            for name in module.classes:
                self._defined.setdefault(name, []).append(module)

    def is_environment(self, module: _Module, cls: ast.ClassDef) -> bool:
        key = (module.path, cls.name)
        if key not in self._results:
            self._results[key] = False  # ends the recursion for a class that derives from itself
            self._results[key] = any(
                self._is_environment_base(module, cls.name, base) for base in module.bases(cls)
            )
        return self._results[key]

    def _is_environment_base(self, module: _Module, heir: str, base: _Base) -> bool:
        if base.module is None and base.name in module.classes and base.name != heir:
            return self.is_environment(module, module.classes[base.name])
        top = (base.module or "").partition(".")[0]
        if base.name in _ROOTS and (top in _BASE_PACKAGES or base.relative):
            return True
        last = (base.module or "").rpartition(".")[2]
        defining = self._defined.get(base.name, [])
        candidates = [candidate for candidate in defining if candidate.path.stem == last] or defining
        return any(
            self.is_environment(candidate, candidate.classes[base.name])
            for candidate in candidates
            if candidate is not module
        )


def _top_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a file, those under `if` and `try` included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _top_level(node.body)
            yield from _top_level(node.orelse)
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _top_level(handler.body)


def _imports(tree: ast.Module) -> Iterator[tuple[str, _Base]]:
    """Each imported local name with the class or module it refers to."""
    for node in _top_level(tree.body):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, _Base(node.module or "", alias.name, node.level > 0)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                yield name, _Base(alias.name, alias.name)


def _describe(module: _Module, cls: ast.ClassDef) -> EnvironmentInfo:
    text = ast.get_docstring(cls) or module.doc
    return EnvironmentInfo(
        name=_name(cls) or module.path.stem,
        class_name=cls.name,
        path=module.path,
        line=cls.lineno,
        description=next(iter(text.strip().splitlines()), ""),
    )


def _is_abstract(cls: ast.ClassDef) -> bool:
    """Whether the class declares abstract methods, so that only subclasses can run."""
    return any(
        ast.unparse(decorator).rpartition(".")[2] == "abstractmethod"
        for node in cls.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in node.decorator_list
    )


def _name(cls: ast.ClassDef) -> str | None:
    for node in cls.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="name")], value=ast.Constant(value=str(name)))
                | ast.AnnAssign(target=ast.Name(id="name"), value=ast.Constant(value=str(name)))
            ):
                return name
    return None
