"""What a Python module binds, read from its source without importing it.

A module that fills its namespace while it is imported (`__getattr__`, `globals()`, an extension's `*`) is
`open`: a name that is not written in it may still exist.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class ImportedName:
    """`from module import name`, or `import module` where `name` is None."""

    module: str
    name: str | None


@dataclass(slots=True)
class ModuleNames:
    """The bindings of one module."""

    module: str
    is_package: bool
    functions: dict[str, list[FunctionNode]] = field(default_factory=dict)
    """All definitions of a name: the branches of an `if`, overloads."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    imports: dict[str, list[ImportedName]] = field(default_factory=dict)
    values: dict[str, ast.expr | None] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    strings: set[str] = field(default_factory=set)
    """Identifiers among its string constants: what a lazy module exports is written so."""
    open: bool = False

    def names(self) -> set[str]:
        return {*self.functions, *self.classes, *self.imports, *self.values}


def read_module(source: str, module: str, *, is_package: bool) -> ModuleNames | None:
    """The bindings of the module; None where its source is not valid for this Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    names = ModuleNames(module, is_package)
    _read_body(tree.body, names)
    names.open = names.open or _fills_itself(tree)
    if names.open or "__all__" in names.values:
        names.strings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()
        }
    return names


def _read_body(body: list[ast.stmt], names: ModuleNames) -> None:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.functions.setdefault(node.name, []).append(node)
            names.open = names.open or node.name == "__getattr__"
        elif isinstance(node, ast.ClassDef):
            names.classes[node.name] = node
        elif isinstance(node, ast.Import):
            _read_import(node, names)
        elif isinstance(node, ast.ImportFrom):
            _read_import_from(node, names)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for name in _targets(target):
                    names.values[name] = node.value
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor):
            for name in _targets(node.target):
                names.values[name] = node.value if isinstance(node, ast.AnnAssign) else None
        for inner in _inner_bodies(node):
            _read_body(inner, names)


def _inner_bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The bodies that run in the same namespace: of if, try, with, for and while."""
    if isinstance(node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try):
        yield node.body
        yield getattr(node, "orelse", [])
        yield getattr(node, "finalbody", [])
        for handler in getattr(node, "handlers", []):
            yield handler.body


def _read_import(node: ast.Import, names: ModuleNames) -> None:
    for alias in node.names:
        if alias.asname:
            names.imports.setdefault(alias.asname, []).append(ImportedName(alias.name, None))
        else:
            root = alias.name.partition(".")[0]
            names.imports.setdefault(root, []).append(ImportedName(root, None))


def _read_import_from(node: ast.ImportFrom, names: ModuleNames) -> None:
    module = absolute_module(node, names.module, is_package=names.is_package)
    for alias in node.names:
        if alias.name == "*":
            names.stars.append(module)
        else:
            names.imports.setdefault(alias.asname or alias.name, []).append(ImportedName(module, alias.name))


def absolute_module(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    """The module that a relative import means inside `module`."""
    if not node.level:
        return node.module or ""
    parts = module.split(".") if is_package else module.split(".")[:-1]
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _targets(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _targets(element)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value)


def _fills_itself(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("globals", "setattr", "vars"):
                return True
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
            if isinstance(node.ctx, ast.Store):
                return True
        elif isinstance(node, ast.Attribute) and node.attr == "attach":
            return True
    return False
