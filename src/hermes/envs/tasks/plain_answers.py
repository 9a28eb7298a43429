"""Texts that may be passed to a scorer that evaluates them: data and arithmetic, by their syntax tree.

A text passes if every node of its tree is listed here, so what the list does not name (attributes,
subscripts, comprehensions, lambda, calls of anything but known functions of mathematics) never reaches an
evaluator.
"""

from __future__ import annotations

import ast
import re
import warnings

FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "exp", "log", "ln", "sqrt", "Abs", "abs", "asin", "acos", "atan", "sinh", "cosh"}
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_SYMBOL = re.compile(r"[A-Za-z](_?\d{1,2})?\Z")
_INERT = re.compile(r"[A-Za-z0-9_ \n,|+-]*\Z")
"""Text that as a program is at most a sum of names and numbers."""
_MAX_EXPONENT = 1000
_LARGEST = 10**40
_MAX_NODES = 1500


def is_expression(text: str) -> bool:
    """True for arithmetic over numbers, one-letter symbols and known functions."""
    tree = _parsed(text)
    return tree is not None and _is_arithmetic(tree)


def is_arithmetic_of_numbers(text: str) -> bool:
    """True for arithmetic over whole numbers, with the four operations and brackets only."""
    tree = _parsed(text)
    if tree is None:
        return False
    nodes = list(ast.walk(tree))
    allowed = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    if not all(isinstance(node, allowed) and not isinstance(node, ast.Pow) for node in nodes):
        return False
    return _is_arithmetic(tree) and all(
        type(node.value) is int for node in nodes if isinstance(node, ast.Constant)
    )


def is_data(text: str) -> bool:
    """True for words and numbers, and for lists of them as Python writes them."""
    if _INERT.match(text):
        return True
    tree = _parsed(text)
    return tree is not None and _is_literal(tree)


def _parsed(text: str) -> ast.expr | None:
    if not text.isascii() or "\\" in text:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if sum(1 for _ in ast.walk(tree)) <= _MAX_NODES else None


def _is_literal(node: ast.expr) -> bool:
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return all(_is_literal(part) for part in parts)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=ast.Constant() as number):
            return _is_number(number)
        case ast.Constant(value=str() | bool()):
            return True
        case ast.Constant():
            return _is_number(node)
    return False


def _is_number(node: ast.Constant) -> bool:
    number = node.value
    return isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < _LARGEST


def _is_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return _is_number(node)
        case ast.Name(id=name):
            return _SYMBOL.match(name) is not None
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _is_arithmetic(operand)
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            return _is_arithmetic(base) and _is_exponent(exponent)
        case ast.BinOp(left=left, op=operator, right=right):
            return isinstance(operator, _OPERATORS) and _is_arithmetic(left) and _is_arithmetic(right)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return name in FUNCTIONS and _is_arithmetic(argument)
    return False


def _is_exponent(node: ast.expr) -> bool:
    """No power within an exponent, and no number in it that makes a result of many digits."""
    nodes = list(ast.walk(node))
    if any(isinstance(inner, ast.Pow) for inner in nodes):
        return False
    numbers = [inner.value for inner in nodes if isinstance(inner, ast.Constant)]
    has_symbol = any(isinstance(inner, ast.Name) for inner in nodes)
    products = sum(isinstance(inner, ast.Mult) for inner in nodes)
    small = all(isinstance(number, int | float) and abs(number) <= _MAX_EXPONENT for number in numbers)
    return _is_arithmetic(node) and small and (has_symbol or products == 0)
