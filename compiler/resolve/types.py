"""The type of an expression, and the names that it may use (E201, E202)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Literal

from chimerac.chimera_ir.diagnostics import Diagnostic, Span, did_you_mean
from chimerac.compiler.resolve.expressions import FUNCTIONS
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.walk import left_spine

Type = Literal["integer", "truth value"]


class Scope(Mapping[str, Type]):
    """The names that are visible at a place, with their types: its own, and those of the outer scope.

    The outer names are not copied, since a listing may have thousands of names and thousands of blocks.

    Attributes:
        hints: name -> the help if the name is unknown here.
        others: more names that an author may have meant.
    """

    def __init__(self, outer: Scope | None = None) -> None:
        self._outer = outer
        self._own: dict[str, tuple[Type, Span | None]] = {}
        self.hints: Mapping[str, str] = outer.hints if outer is not None else {}
        self.others: tuple[str, ...] = outer.others if outer is not None else ()

    def _find(self, name: object) -> tuple[Type, Span | None] | None:
        """Return the type of a name, and where it is defined; None if it is unknown."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope._own:
                return scope._own[name]
            scope = scope._outer
        return None

    def __getitem__(self, name: str) -> Type:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found[0]

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        if self._outer is not None:
            yield from (name for name in self._outer if name not in self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def where(self, name: str) -> Span | None:
        """Return where a name is defined, or None if it is undefined or predefined."""
        found = self._find(name)
        return found and found[1]

    def add(self, binder: n.Identifier, type: Type) -> None:
        """Add a name that is bound in the text."""
        self._own[binder.name] = type, binder.span

    def add_integers(self, names: Iterable[str]) -> None:
        """Add predefined integers."""
        self._own.update((name, ("integer", None)) for name in names)


_FUNCTION_HELP = {  # a function of other languages -> the help
    "abs": "|x| is written max(x, -x)",
    "floor": "a quotient is written a // b, and rounds down",
    "int": "there are no fractions: a quotient is written a // b, and rounds down",
    "ceil": "a quotient rounded up is written (a + b - 1) // b",
    "mod": "the remainder is written a % b",
    "div": "a quotient is written a // b, and rounds down",
}


def _product_help(name: str, scope: Mapping[str, Type]) -> str:
    """Return the help for two known names that are written together, as in Dv; '' for any other name."""
    for k in range(1, len(name)):
        if name[:k] in scope and name[k:] in scope:
            return f"write '{name[:k]}*{name[k:]}' instead of '{name}'"
    return ""


_CONDITIONS = {"true": "0 == 0", "false": "0 == 1"}  # a truth value of other languages -> a condition with that value


def check(e: n.Expr, scope: Mapping[str, Type], expected: Type, found: list[Diagnostic]) -> None:
    """Check that an expression uses only these names and known functions (E201), and that it has the expected type (E202)."""
    actual = _type(e, scope, found)
    if actual is not None and actual != expected:
        found.append(_type_finding(e, expected, actual))


def _type_finding(e: n.Expr, expected: Type, actual: Type) -> Diagnostic:
    """Return E202 for an expression that has another type than the expected one."""
    help = "compare it, for instance with != 0" if expected == "truth value" else "write: if ... then 1 else 0"
    return Diagnostic("E202", f"this must be {_with_article(expected)}, and is {_with_article(actual)}", e.span, help=help)


def _operand_type(e: n.Binary) -> Type:
    """Return the type that both operands must have."""
    return "truth value" if e.op in ("and", "or") else "integer"


def result_type(e: n.Binary) -> Type:
    """Return the type of an operation."""
    return "integer" if e.op in ("+", "-", "*", "//", "%") else "truth value"


def _with_article(t: Type) -> str:
    return "an integer" if t == "integer" else "a truth value"


def _type(e: n.Expr, scope: Mapping[str, Type], found: list[Diagnostic]) -> Type | None:
    """Return the type of an expression; None if an unknown name leaves it open. Adds the findings about all its parts."""
    match e:
        case n.Int():
            return "integer"
        case n.Name():
            if e.name in scope:
                return scope[e.name]
            hint, others = (scope.hints.get(e.name, ""), scope.others) if isinstance(scope, Scope) else ("", ())
            help = hint or _product_help(e.name, scope) or did_you_mean(e.name, [*scope, *others])
            if condition := _CONDITIONS.get(e.name.casefold()):
                help = f"write '{condition}' instead of '{e.name}'; the language has no words for truth values"
            found.append(Diagnostic("E201", f"unknown name '{e.name}'", e.span, help=help))
            return None
        case n.Unary():
            type: Type = "integer" if e.op == "-" else "truth value"
            check(e.operand, scope, type, found)
            return type
        case n.Binary():
            first_operand, operations = left_spine(e)
            check(first_operand, scope, _operand_type(operations[0]), found)
            check(operations[0].right, scope, _operand_type(operations[0]), found)
            for left, operation in pairwise(operations):
                if result_type(left) != _operand_type(operation):
                    found.append(_type_finding(left, _operand_type(operation), result_type(left)))
                check(operation.right, scope, _operand_type(operation), found)
            return result_type(e)
        case n.IfElse():
            check(e.condition, scope, "truth value", found)
            first, second = _type(e.then, scope, found), _type(e.otherwise, scope, found)
            if first and second and first != second:
                found.append(
                    Diagnostic("E202", f"one branch is {_with_article(first)}, the other {_with_article(second)}", e.span)
                )
            return first or second
        case n.Call():
            if e.function not in FUNCTIONS:
                help = did_you_mean(e.function, FUNCTIONS)
                if e.function in scope:
                    help = f"'{e.function}' is a value: a product is written with *, as in {e.function}*2"
                help = _FUNCTION_HELP.get(e.function, help)
                found.append(Diagnostic("E201", f"unknown function '{e.function}'", e.span, help=help))
            for argument in e.arguments:
                check(argument, scope, "integer", found)
            return "integer"
