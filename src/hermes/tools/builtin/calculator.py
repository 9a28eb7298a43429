"""calculator: exact arithmetic on whole numbers, decimals and fractions.

Numbers are rationals throughout, so 0.1 + 0.2 is 0.3. The expression is parsed, never evaluated as
code; its length, its powers and the size of every intermediate value are bounded.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

from hermes.core import JSONObject
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema

_MAX_CHARS = 1_000
_MAX_BITS = 12_000
"""Size of the largest number, about 3,600 digits: below the limit of Python's int to text conversion."""
_MAX_DECIMALS = 60
"""Longest exact decimal fraction; a longer one is printed as a quotient and an approximation."""
_APPROXIMATE = Context(prec=20)

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


async def _calculator(arguments: JSONObject, bench: Workbench) -> str:
    return calculate(arguments["expression"])


def calculate(expression: str) -> str:
    """The value of an expression as text; ToolError if it cannot be calculated."""
    if len(expression) > _MAX_CHARS:
        raise ToolError(f"the expression is longer than {_MAX_CHARS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        return render(_value(tree.body, expression.strip()))
    except SyntaxError as error:
        raise ToolError(f"not an arithmetic expression: {error.msg}") from None
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (MemoryError, RecursionError):
        raise ToolError("the expression is nested too deeply") from None
    except ValueError as error:
        raise ToolError(f"not an arithmetic expression: {error}") from None


def render(value: Fraction) -> str:
    """Whole numbers and short decimals exactly; anything else as a quotient and 20 digits of it."""
    if value.denominator == 1:
        return str(value.numerator)
    decimals = _decimals(value.denominator)
    if decimals is not None:
        sign, digits = "-" if value < 0 else "", str(abs(value.numerator) * 10**decimals // value.denominator)
        digits = digits.zfill(decimals + 1)
        return f"{sign}{digits[:-decimals]}.{digits[-decimals:]}"
    about = _APPROXIMATE.divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{value.numerator}/{value.denominator} ≈ {about}"


def _decimals(denominator: int) -> int | None:
    """Number of decimals of a fraction with this denominator; None if it is infinite or too long."""
    for count in range(1, _MAX_DECIMALS + 1):
        if 10**count % denominator == 0:
            return count
    return None


def _value(node: ast.expr, source: str) -> Fraction:
    match node:
        case ast.Constant():
            return _number(node, source)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, source)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, source)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, source), _value(right, source))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _check_size(Fraction(_BINARY[type(op)](_value(left, source), _value(right, source))))
        case ast.BinOp(op=ast.BitXor()):
            raise ToolError("'^' is not a power here: write **")
        case ast.Tuple():
            raise ToolError("write numbers without thousands separators")
        case _:
            part = (ast.get_source_segment(source, node) or "")[:80]
            raise ToolError(f"only numbers, + - * / // % ** and parentheses can be calculated, not '{part}'")


def _number(node: ast.Constant, source: str) -> Fraction:
    if type(node.value) is int:
        return _check_size(Fraction(node.value))
    text = (ast.get_source_segment(source, node) or "").replace("_", "")
    if type(node.value) is not float:
        raise ToolError(f"'{text[:80]}' is not a number")
    exact = Decimal(text)  # from the source, not from the float, which is already rounded
    if abs(exact.adjusted()) * 3 > _MAX_BITS:
        raise ToolError("a number is too large or too small")
    return _check_size(Fraction(exact))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError("the exponent must be a whole number")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if base not in (-1, 0, 1) and size * abs(exponent.numerator) > _MAX_BITS:
        raise ToolError("the power is too large to calculate")
    return Fraction(base**exponent.numerator)


def _check_size(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ToolError("a number is too large to calculate with")
    return value


TOOLS = (
    Tool(
        name="calculator",
        toolset="math",
        description="Calculate exactly: numbers, + - * / // % ** and parentheses.",
        parameters=object_schema(
            "expression",
            expression={"type": "string", "minLength": 1, "description": "Such as (17 * 23) / 4."},
        ),
        handler=_calculator,
        stateless=True,
    ),
)
