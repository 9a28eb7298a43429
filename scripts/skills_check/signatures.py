"""The keyword arguments that a function or class accepts, and the fields of a class, read from source."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from skills_check.modules import FunctionNode
from skills_check.names import ClassTarget, FunctionTarget, NameIndex, Target, class_members

_FIELD_BASES = {"BaseModel", "BaseSettings", "RootModel", "TypedDict", "NamedTuple", "Struct", "SQLModel"}
_FIELD_DECORATORS = {"dataclass", "define", "frozen", "attrs", "s", "config", "chz"}
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Signature:
    """Keyword names. `open` means that others may be accepted too."""

    keywords: frozenset[str]
    open: bool = False

    def joined(self, other: Signature) -> Signature:
        return Signature(self.keywords | other.keywords, self.open or other.open)


@dataclass(frozen=True, slots=True)
class ClassField:
    """A field of a configuration class, with its annotation in the module that defines it."""

    name: str
    module: str
    annotation: ast.expr


_OPEN = Signature(frozenset(), open=True)


def signature(index: NameIndex, target: Target) -> Signature:
    """What a call of `target` accepts by keyword."""
    match target:
        case FunctionTarget():
            return _function(target.nodes)
        case ClassTarget():
            return _class(index, target, 0)
        case _:
            return _OPEN


def class_fields(index: NameIndex, target: ClassTarget, depth: int = 0) -> dict[str, ClassField]:
    """Annotated names of the class and its bases, aliases included; private ones left out."""
    fields: dict[str, ClassField] = {}
    if depth > _MAX_DEPTH:
        return fields
    for base in reversed(index.bases(target)):
        if isinstance(base, ClassTarget):
            fields |= class_fields(index, base, depth + 1)
    for statement in target.node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            if "ClassVar" in ast.unparse(statement.annotation) or name.startswith("__"):
                continue
            entry = ClassField(name, target.module, statement.annotation)
            fields |= dict.fromkeys((name, *_aliases(statement.value)), entry)
    return fields


def has_fields(index: NameIndex, target: ClassTarget, depth: int = 0) -> bool:
    """Whether the constructor is generated from annotated fields."""
    decorators = {_head(decorator) for decorator in target.node.decorator_list}
    bases = {_head(base) for base in target.node.bases}
    if decorators & _FIELD_DECORATORS or bases & _FIELD_BASES:
        return True
    return depth < _MAX_DEPTH and any(
        has_fields(index, base, depth + 1) for base in index.bases(target) if isinstance(base, ClassTarget)
    )


def allows_extra(index: NameIndex, target: ClassTarget, depth: int = 0) -> bool:
    """Whether unknown keys are accepted: pydantic's `extra="allow"`, or a base class that is not readable."""
    for statement in target.node.body:
        is_setting = isinstance(statement, ast.Assign | ast.AnnAssign | ast.ClassDef)
        if is_setting and "extra" in (text := ast.unparse(statement)) and "'allow'" in text:
            return True
    for node, base in zip(target.node.bases, index.bases(target), strict=True):
        if isinstance(base, ClassTarget):
            if depth < _MAX_DEPTH and allows_extra(index, base, depth + 1):
                return True
        elif _head(node) not in _FIELD_BASES | {"object", "ABC", "Generic", "Protocol", "str", "Enum"}:
            return True
    return False


def _function(nodes: tuple[FunctionNode, ...]) -> Signature:
    joined = Signature(frozenset())
    for node in nodes:
        arguments = node.args
        names = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
        joined = joined.joined(Signature(frozenset(names), arguments.kwarg is not None))
    return joined


def _class(index: NameIndex, target: ClassTarget, depth: int) -> Signature:
    if depth > _MAX_DEPTH or target.node.keywords:
        return _OPEN
    methods = class_members(target.node).methods
    for name in ("__init__", "__new__"):
        if name in methods:
            constructor = _function(tuple(methods[name]))
            if not constructor.open:
                return constructor
            # The rest of the keywords goes to a base class, or is read from the mapping.
            bases = [
                _class(index, base, depth + 1)
                for base in index.bases(target)
                if isinstance(base, ClassTarget)
            ]
            return (
                _OPEN
                if len(bases) != 1 or not _passes_on(methods[name][0])
                else _with_base(constructor, bases[0])
            )
    if has_fields(index, target):
        return Signature(frozenset(class_fields(index, target)), allows_extra(index, target))
    for base in index.bases(target):
        if isinstance(base, ClassTarget):
            inherited = _class(index, base, depth + 1)
            if inherited.keywords or inherited.open:
                return inherited
        elif _head_unknown(target):
            return _OPEN
    return Signature(frozenset())


def _with_base(constructor: Signature, base: Signature) -> Signature:
    """A constructor whose `**kwargs` go to `super().__init__`: open only if that one is."""
    return Signature(constructor.keywords | base.keywords, base.open)


def _passes_on(node: FunctionNode) -> bool:
    """Whether the only use of `**kwargs` is to hand them to `super().__init__`."""
    assert node.args.kwarg is not None
    name = node.args.kwarg.arg
    uses = [item for item in ast.walk(node) if isinstance(item, ast.Name) and item.id == name]
    handed = [
        keyword
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__"
        for keyword in call.keywords
        if keyword.arg is None and isinstance(keyword.value, ast.Name) and keyword.value.id == name
    ]
    return len(uses) == len(handed) == 1


def _head_unknown(target: ClassTarget) -> bool:
    return any(_head(base) not in {"object", "ABC", "Protocol", "Generic"} for base in target.node.bases)


def _head(node: ast.expr) -> str:
    return ast.unparse(node).partition("(")[0].partition("[")[0].rpartition(".")[2]


def _aliases(value: ast.expr | None) -> list[str]:
    if not isinstance(value, ast.Call):
        return []
    names = ("alias", "validation_alias")
    return [
        constant.value
        for keyword in value.keywords
        if keyword.arg in names
        for constant in ast.walk(keyword.value)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    ]
