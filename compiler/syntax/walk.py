"""The parts of an expression: visited in loops, since a chain a + b + c ... may be of any length."""

from __future__ import annotations

from collections.abc import Iterator

from chimerac.compiler.syntax import nodes as n


def left_spine(e: n.Expr) -> tuple[n.Expr, list[n.Binary]]:
    """Return the first operand of a chain a + b + c ..., and the operations that follow it, from left to right.

    Any other expression is a chain without operations: it is returned itself, with [].
    """
    operations: list[n.Binary] = []
    while isinstance(e, n.Binary):
        operations.append(e)
        e = e.left
    return e, operations[::-1]


def subexpressions(e: n.Expr) -> Iterator[n.Expr]:
    """Yield an expression and all its parts: each before its own parts, and operands from left to right."""
    todo = [e]
    while todo:
        e = todo.pop()
        yield e
        match e:
            case n.Unary():
                todo.append(e.operand)
            case n.Binary():
                todo += [e.right, e.left]
            case n.IfElse():
                todo += [e.otherwise, e.then, e.condition]
            case n.Call():
                todo += reversed(e.arguments)
            case _:
                pass


def names_in(e: n.Expr) -> list[str]:
    """Return the names that an expression uses, each once, in the order of the text."""
    return list(dict.fromkeys(part.name for part in subexpressions(e) if isinstance(part, n.Name)))
