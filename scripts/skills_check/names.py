"""Dotted names in packages, resolved through imports, re-exports and lazy modules, from source alone.

A name is present, absent, or open: it cannot be decided without importing the package (an extension module, a
namespace filled at import). Only absent names are mistakes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from skills_check.modules import FunctionNode, ImportedName, ModuleNames, read_module
from skills_check.package_source import PackageSource

_MAX_DEPTH = 24


@dataclass(frozen=True, slots=True)
class ModuleTarget:
    name: str


@dataclass(frozen=True, slots=True)
class ClassTarget:
    module: str
    node: ast.ClassDef


@dataclass(frozen=True, slots=True)
class FunctionTarget:
    module: str
    nodes: tuple[FunctionNode, ...]
    bound: bool = False
    """Whether it is a method, whose first parameter the caller does not pass."""


@dataclass(frozen=True, slots=True)
class ValueTarget:
    """A name that exists, of which no more is to be read."""


@dataclass(frozen=True, slots=True)
class OpenTarget:
    """Whether it exists cannot be read from the source."""

    reason: str


@dataclass(frozen=True, slots=True)
class AbsentTarget:
    reason: str


Target = ModuleTarget | ClassTarget | FunctionTarget | ValueTarget | OpenTarget | AbsentTarget


class NameIndex:
    """The names of several packages. Modules are parsed when they are first needed."""

    def __init__(self, sources: Iterable[PackageSource]) -> None:
        self.sources = tuple(sources)
        self._owners = {module: source for source in self.sources for module in source.modules}
        self._packages = {
            ".".join(parts[:count])
            for parts in (module.split(".") for module in self._owners)
            for count in range(1, len(parts))
        }

    @property
    def roots(self) -> frozenset[str]:
        return frozenset().union(*(source.roots for source in self.sources))

    def resolve(self, dotted: str) -> Target:
        """The target of a dotted name that begins with a package of this index."""
        root, *rest = dotted.split(".")
        target: Target = self.module(root)
        for attribute in rest:
            target = self.attribute(target, attribute)
        return target

    def module(self, name: str) -> Target:
        if name in self._owners or name in self._packages:
            return ModuleTarget(name)
        root = name.partition(".")[0]
        if root not in self.roots:
            return OpenTarget(f"{root} is not a pinned package")
        parent = name.rpartition(".")[0]
        if parent and isinstance(above := self.module(parent), OpenTarget | AbsentTarget):
            return above
        siblings = [module for module in self._owners if module.rpartition(".")[0] == parent]
        return AbsentTarget(f"there is no module {name}{_nearest(name, siblings)}")

    def attribute(self, target: Target, name: str) -> Target:
        """The target of `.name` on `target`."""
        match target:
            case ModuleTarget():
                return self._module_attribute(target.name, name, 0)
            case ClassTarget():
                return self._class_attribute(target, name, 0)
            case AbsentTarget() | OpenTarget():
                return target
            case _:
                return OpenTarget("the type of the value is not known")

    def names(self, module: str) -> ModuleNames | None:
        """The bindings of a module; None: it has no source that can be parsed."""
        source = self._owners.get(module)
        if source is None:
            return None
        if module not in source.parsed:
            path = source.modules[module]
            is_package = path.endswith(("/__init__.py", "/__init__.pyi"))
            source.parsed[module] = read_module(source.text(path), module, is_package=is_package)
        return source.parsed[module]

    def bases(self, target: ClassTarget) -> list[Target]:
        return [self.expression(target.module, base) for base in target.node.bases]

    def expression(self, module: str, node: ast.expr) -> Target:
        """The target of a name, a dotted name or a generic's head inside `module`."""
        if isinstance(node, ast.Subscript):
            return self.expression(module, node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                return self.expression(module, ast.parse(node.value, mode="eval").body)
            except SyntaxError:
                return OpenTarget("an annotation that cannot be read")
        if isinstance(node, ast.Attribute):
            return self.attribute(self.expression(module, node.value), node.attr)
        if isinstance(node, ast.Name):
            return self._module_attribute(module, node.id, 0)
        return OpenTarget("an expression")

    def _module_attribute(self, module: str, name: str, depth: int) -> Target:
        if depth > _MAX_DEPTH:
            return OpenTarget(f"the imports of {module}.{name} are nested too deeply")
        names = self.names(module)
        target = self._own_name(names, name, depth) if names else None
        if target is not None and not isinstance(target, AbsentTarget | OpenTarget):
            return target
        submodule = f"{module}.{name}"
        if submodule in self._owners or submodule in self._packages:
            return ModuleTarget(submodule)
        if target is not None:
            return target
        if names is None:
            if module in self._packages and module not in self._owners:
                return AbsentTarget(f"there is no module {submodule}{_nearest(submodule, self._owners)}")
            return OpenTarget(f"{module} has no readable source")
        return self._from_stars(names, name, depth)

    def _own_name(self, names: ModuleNames, name: str, depth: int) -> Target | None:
        if name in names.classes:
            return ClassTarget(names.module, names.classes[name])
        if name in names.functions:
            return FunctionTarget(names.module, tuple(names.functions[name]))
        imports = names.imports.get(name)
        if imports:
            targets = [self._imported(imported, depth) for imported in imports]
            return min(targets, key=_certainty)
        if name in names.values:
            return self._value(names, name, depth)
        return None

    def _value(self, names: ModuleNames, name: str, depth: int) -> Target:
        """`Alias = Class` is the class; other values are only known to exist."""
        value = names.values[name]
        if isinstance(value, ast.Name) and value.id != name:
            alias = self._module_attribute(names.module, value.id, depth + 1)
            if isinstance(alias, ClassTarget | FunctionTarget | ModuleTarget):
                return alias
        return ValueTarget()

    def _imported(self, imported: ImportedName, depth: int) -> Target:
        root = imported.module.partition(".")[0]
        if root not in self.roots:
            return OpenTarget(f"it comes from {root}, which is not pinned")
        if imported.name is None:
            return self.module(imported.module)
        module = self.module(imported.module)
        if not isinstance(module, ModuleTarget):
            return OpenTarget(f"{imported.module} has no source in the package")
        return self._module_attribute(imported.module, imported.name, depth + 1)

    def _from_stars(self, names: ModuleNames, name: str, depth: int) -> Target:
        is_open = names.open
        for star in names.stars:
            if star.partition(".")[0] not in self.roots or star not in self._owners:
                is_open = True
                continue
            target = self._module_attribute(star, name, depth + 1)
            if not isinstance(target, AbsentTarget | OpenTarget):
                return target
            is_open = is_open or isinstance(target, OpenTarget)
        if is_open and name in names.strings:
            return ValueTarget()
        if is_open:
            return OpenTarget(f"{names.module} fills its namespace when it is imported")
        return AbsentTarget(f"{names.module} has no name '{name}'{_nearest(name, names.names())}")

    def _class_attribute(self, target: ClassTarget, name: str, depth: int) -> Target:
        members = class_members(target.node)
        if name in members.methods:
            return FunctionTarget(target.module, tuple(members.methods[name]), bound=True)
        if name in members.names or name in _OBJECT:
            return ValueTarget()
        if members.open or depth > _MAX_DEPTH or target.node.keywords:
            return OpenTarget(f"{target.node.name} makes its attributes at run time")
        is_open = any(not _is_plain_decorator(decorator) for decorator in target.node.decorator_list)
        for base in self.bases(target):
            if isinstance(base, ClassTarget):
                inherited = self._class_attribute(base, name, depth + 1)
                if not isinstance(inherited, AbsentTarget | OpenTarget):
                    return inherited
                is_open = is_open or isinstance(inherited, OpenTarget)
            elif not (isinstance(base, OpenTarget) and _is_plain_base(target.node)):
                is_open = True
        if is_open:
            return OpenTarget(f"a base class of {target.node.name} is not in the pinned packages")
        return AbsentTarget(f"{target.node.name} has no attribute '{name}'{_nearest(name, members.all())}")


@dataclass(frozen=True, slots=True)
class ClassMembers:
    """What the body of a class defines, and what its methods set on `self`."""

    methods: dict[str, list[FunctionNode]]
    names: frozenset[str]
    open: bool

    def all(self) -> list[str]:
        return [*self.methods, *self.names]


@lru_cache(maxsize=4096)
def class_members(node: ast.ClassDef) -> ClassMembers:
    methods: dict[str, list[FunctionNode]] = {}
    names = {
        item.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute)
        and isinstance(item.ctx, ast.Store)
        and isinstance(item.value, ast.Name)
        and item.value.id in ("self", "cls")
    }
    for statement in _class_statements(node.body):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            if _is_property(statement):
                names.add(statement.name)
            else:
                methods.setdefault(statement.name, []).append(statement)
        elif isinstance(statement, ast.ClassDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return ClassMembers(
        methods, frozenset(names), not {"__getattr__", "__getattribute__"}.isdisjoint(methods)
    )


def _class_statements(body: list[ast.stmt]) -> list[ast.stmt]:
    statements: list[ast.stmt] = []
    for statement in body:
        statements.append(statement)
        if isinstance(statement, ast.If | ast.Try):
            statements += _class_statements(statement.body) + _class_statements(statement.orelse)
    return statements


def _is_property(node: FunctionNode) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def _is_plain_decorator(node: ast.expr) -> bool:
    return ast.unparse(node).partition("(")[0].rpartition(".")[2] in ("dataclass", "final", "total_ordering")


_PLAIN_BASES = {"object", "ABC", "Protocol", "Generic", "NamedTuple", "TypedDict"}
_OBJECT = frozenset(dir(object)) | {"__dict__", "__name__", "__doc__", "__module__"}


def _is_plain_base(node: ast.ClassDef) -> bool:
    """Whether the bases from outside the packages add no public attributes."""
    heads = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
    return all(head in _PLAIN_BASES for head in heads)


def _certainty(target: Target) -> int:
    return 2 if isinstance(target, AbsentTarget) else 1 if isinstance(target, OpenTarget | ValueTarget) else 0


def _nearest(name: str, candidates: Iterable[str]) -> str:
    close = get_close_matches(name, candidates, n=1)
    return f" (nearest: {close[0]})" if close else ""
