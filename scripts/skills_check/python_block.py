"""Checks a Python block: it parses, and what it imports, reads and passes by keyword exists.

Values are followed only where their class is plain (`x = Class(...)`). What cannot be decided is not
reported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches

from skills_check.names import (
    AbsentTarget,
    ClassTarget,
    FunctionTarget,
    ModuleTarget,
    NameIndex,
    OpenTarget,
    Target,
)
from skills_check.signatures import signature


@dataclass(frozen=True, slots=True)
class Instance:
    """A value of a class of the index."""

    target: ClassTarget


@dataclass(slots=True)
class PythonScope:
    """Names that earlier blocks of the file bound, and what was met on the way."""

    names: dict[str, Target | Instance] = field(default_factory=dict)
    unpinned: set[str] = field(default_factory=set)
    """Packages that are imported but not pinned."""
    undecided: set[str] = field(default_factory=set)
    """Dotted names that the source leaves open."""
    looked_up: int = 0
    """How many names and keywords of pinned packages were decided."""


def check_python(
    text: str, index: NameIndex, scope: PythonScope, local_modules: Iterable[str] = ()
) -> list[tuple[int, str]]:
    """(line inside the block, problem) for everything that does not exist."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [(error.lineno or 1, f"is not valid Python: {error.msg}")]
    except ValueError as error:
        return [(1, f"is not valid Python: {error}")]
    visitor = _Visitor(index, scope, frozenset(local_modules))
    visitor.visit(tree)
    return visitor.problems


class _Visitor(ast.NodeVisitor):
    def __init__(self, index: NameIndex, scope: PythonScope, local_modules: frozenset[str]) -> None:
        self.index = index
        self.scope = scope
        self.local_modules = local_modules
        self.problems: list[tuple[int, str]] = []
        self._optional = 0

    # Imports

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if not self._is_readable(alias.name):
                continue
            target = self._dotted_module(alias.name)
            self._report(node, target, alias.name)
            bound = target if alias.asname else self.index.module(alias.name.partition(".")[0])
            self.scope.names[alias.asname or alias.name.partition(".")[0]] = bound

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or not self._is_readable(module):
            for alias in node.names:
                self.scope.names.pop(alias.asname or alias.name, None)
            return
        above = self._dotted_module(module)
        if not self._report(node, above, module):
            return
        for alias in node.names:
            if alias.name == "*":
                continue
            target = self.index.attribute(above, alias.name)
            self._report(node, target, f"{module}.{alias.name}")
            self.scope.names[alias.asname or alias.name] = target

    def visit_Try(self, node: ast.Try) -> None:
        """An import that may fail is allowed to."""
        handled = " ".join(ast.unparse(handler.type) for handler in node.handlers if handler.type)
        optional = "ImportError" in handled or "ModuleNotFoundError" in handled
        self._optional += optional
        for statement in node.body:
            self.visit(statement)
        self._optional -= optional
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def _dotted_module(self, name: str) -> Target:
        return self.index.module(name)

    def _is_readable(self, module: str) -> bool:
        root = module.partition(".")[0]
        if root in self.index.roots:
            return True
        if root not in sys.stdlib_module_names and root not in self.local_modules:
            self.scope.unpinned.add(root)
        return False

    # Names and calls

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._target(node) is None:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        target = self._target(node.func)
        if target is None:
            self.visit(node.func)
        else:
            self._check_keywords(node, target)
        for argument in (*node.args, *node.keywords):
            self.visit(argument)

    def _check_keywords(self, node: ast.Call, target: Target | Instance) -> None:
        if not isinstance(target, FunctionTarget | ClassTarget):
            return
        accepted = signature(self.index, target)
        names = [keyword.arg for keyword in node.keywords if keyword.arg is not None]
        if accepted.open:
            return
        callee = ast.unparse(node.func)
        for name in names:
            self.scope.looked_up += 1
            if name not in accepted.keywords:
                close = get_close_matches(name, accepted.keywords, n=1)
                nearest = f" (nearest: {close[0]})" if close else ""
                self.problems.append((node.lineno, f"{callee}() has no argument '{name}'{nearest}"))

    def _target(self, node: ast.expr) -> Target | Instance | None:
        """What an expression means, if it begins with a name that is followed; reports what is absent."""
        if isinstance(node, ast.Name):
            return self.scope.names.get(node.id)
        if isinstance(node, ast.Call):
            callee = self._target(node.func)
            return Instance(callee) if isinstance(callee, ClassTarget) else None
        if not isinstance(node, ast.Attribute):
            return None
        above = self._target(node.value)
        if above is None:
            return None
        target = self.index.attribute(above.target if isinstance(above, Instance) else above, node.attr)
        if not isinstance(above, AbsentTarget | OpenTarget):
            self._report(node, target, ast.unparse(node))
        if isinstance(above, ClassTarget) and isinstance(target, AbsentTarget):
            return OpenTarget("reported")
        return target

    def _report(self, node: ast.expr | ast.stmt, target: Target, name: str) -> bool:
        """Counts a decided name and reports an absent one; False where it is absent."""
        if isinstance(target, AbsentTarget):
            if not self._optional:
                problem = (node.lineno, f"{name} does not exist: {target.reason}")
                if problem not in self.problems:
                    self.problems.append(problem)
            return False
        if isinstance(target, OpenTarget):
            self.scope.undecided.add(name)
        else:
            self.scope.looked_up += 1
        return True

    # Bindings

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        value = self._value(node.value)
        for target in node.targets:
            self._bind(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self._bind(node.target, self._value(node.value))

    def visit_withitem(self, node: ast.withitem) -> None:
        self.visit(node.context_expr)
        if node.optional_vars is not None:
            self._bind(node.optional_vars, None)

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, None)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_scope(node, node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_scope(node, node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_scope(node, None)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._inner(node.args, [node.body])

    def _visit_scope(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, function: FunctionNode | None
    ) -> None:
        heads = [*node.decorator_list, *(node.bases if isinstance(node, ast.ClassDef) else ())]
        for head in heads:
            self.visit(head)
        self.scope.names.pop(node.name, None)
        self._inner(function.args if function else None, node.body)

    def _inner(self, arguments: ast.arguments | None, body: list[ast.stmt] | list[ast.expr]) -> None:
        """Visits a body whose parameters hide the names outside; imports inside it stay inside."""
        outer = dict(self.scope.names)
        if arguments is not None:
            parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            for parameter in (*parameters, arguments.vararg, arguments.kwarg):
                if parameter is not None:
                    self.scope.names.pop(parameter.arg, None)
            for default in (*arguments.defaults, *arguments.kw_defaults):
                if default is not None:
                    self.visit(default)
        for statement in body:
            self.visit(statement)
        self.scope.names = outer

    def _value(self, node: ast.expr) -> Target | Instance | None:
        if isinstance(node, ast.Call):
            callee = self._silent(node.func)
            return Instance(callee) if isinstance(callee, ClassTarget) else None
        target = self._silent(node)
        return target if isinstance(target, ClassTarget | FunctionTarget | ModuleTarget | Instance) else None

    def _silent(self, node: ast.expr) -> Target | Instance | None:
        """`_target` without reporting twice."""
        problems, looked_up = list(self.problems), self.scope.looked_up
        target = self._target(node)
        self.problems, self.scope.looked_up = problems, looked_up
        return target

    def _bind(self, target: ast.expr, value: Target | Instance | None) -> None:
        if isinstance(target, ast.Name):
            if value is None:
                self.scope.names.pop(target.id, None)
            else:
                self.scope.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._bind(element, None)
        else:
            self.visit(target)


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
