"""Edits of the text of an expression: of its numbers, signs, divisions and comparisons, and of the direction of counting."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import product

from chimerac.chimera_ir.diagnostics import Span
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.printer import as_written
from chimerac.compiler.syntax.walk import names_in, subexpressions

MAX_PARAMETERS = 3  # edits try at most this many parameters of a schedule, one after another
Edit = tuple[tuple[Span, str], ...]  # pairs: a place on one line, and what to write there


def edited(edit: Edit) -> str:
    """Return the text of the schedule with an edit made."""
    lines = edit[0][0].source.text.split("\n")
    for span, new in sorted(edit, key=lambda x: -x[0].column):  # from the right, so that the columns of the others stay valid
        line = lines[span.line - 1]
        lines[span.line - 1] = line[: span.column - 1] + new + line[span.end_column - 1 :]
    return "\n".join(lines)


def setting(schedule: n.Schedule, what: str) -> n.Expr:
    """Return the value of a setting of a schedule.

    Args:
        what: 'ranks' or 'stages'.
    """
    return next(s.value for s in schedule.statements if isinstance(s, n.Setting) and s.what == what)


def parameters(schedule: n.Schedule) -> list[str]:
    """Return the names of all parameters of a schedule."""
    return [s.name.name for s in schedule.statements if isinstance(s, n.Param)]


def first_parameters(schedule: n.Schedule) -> list[str]:
    """Return the names of the first MAX_PARAMETERS parameters. Edits try no others, so the number of edits is bounded."""
    return parameters(schedule)[:MAX_PARAMETERS]


def from_the_end(total: n.Expr, name: str) -> str:
    """Return `(D - 1 - s)` for a name s that counts from 0 to D - 1.

    Args:
        total: D.
    """
    return f"({total.value - 1 if isinstance(total, n.Int) else f'{as_written(total, inside=True)} - 1'} - {name})"


def renamed(text: str, new: Mapping[str, str]) -> str:
    """Return a text with names replaced, all at once.

    Args:
        new: what to write for each name.
    """
    return re.sub(r"\w+", lambda word: new.get(word[0], word[0]), text)


def is_on_one_line(node: n.Expr | n.Action) -> bool:
    """Return whether the text of a node is on one line."""
    return node.span.line == node.span.end_line


# The functions below take an expression that is on one line.


def changed_constants(e: n.Expr) -> Iterator[str]:
    """Yield the text of an expression with one number changed.

    A number that is an operand of +, - or a comparison is changed by 1 or 2. If it becomes 0 after + or -, it is left out with
    this sign. It does not become 0 before + or -. No number becomes negative. An expression that is only a number is changed
    by 1.
    """
    text, begin = as_written(e), e.span.column
    if isinstance(e, n.Int):
        yield from (str(e.value + by) for by in (1, -1) if e.value + by >= 0)
    for part in subexpressions(e):
        if not isinstance(part, n.Binary) or part.op in ("*", "//", "%", "and", "or"):
            continue
        for side in (part.right, part.left):
            if not isinstance(side, n.Int):
                continue
            first, end = side.span.column - begin, side.span.end_column - begin
            for value in (side.value - 1, side.value + 1, side.value - 2, side.value + 2):
                if value == 0 and side is part.right and part.op in "+-":
                    yield text[: text.rindex(part.op, 0, first)].rstrip() + text[end:]
                elif value > 0 or (value == 0 and part.op not in "+-"):
                    yield f"{text[:first]}{value}{text[end:]}"


def scaled(e: n.Expr, constants: Collection[str], *, fixed: bool) -> Iterator[str]:
    """Yield the text of a sum with the coefficient of one term raised or lowered by 1, but not to 0.

    Only terms of some forms are scaled: a name, a division, and a product of two factors, the first of which is a number.

    Args:
        constants: the names of parameters.
        fixed: scale only the terms that have no other names, and so are equal for all tasks; otherwise scale only the terms
            that have other names.
    """
    text, begin = as_written(e), e.span.column
    terms, todo = [], [e]
    while todo:
        part = todo.pop()
        if isinstance(part, n.Binary) and part.op in "+-":
            todo += [part.right, part.left]
        else:
            terms.append(part)
    for term in (x for x in terms if fixed == (set(names_in(x)) <= set(constants))):
        match term:
            case n.Name() | n.Binary("%" | "//"):
                new = [f"2*{as_written(term, inside=True)}"]
            case n.Binary("*", n.Int(value), _):
                rest = term.span.text.partition("*")[2].strip()
                new = [rest if k == 1 else f"{k}*{rest}" for k in (value - 1, value + 1) if k > 0]
            case _:
                continue
        first, end = term.span.column - begin, term.span.end_column - begin
        if isinstance(term, n.Binary) and text[first - 1 : first] == "(" and text[end : end + 1] == ")":
            first, end = first - 1, end + 1  # the parentheses around the term are replaced too
        yield from (text[:first] + x + text[end:] for x in new)


def changed_divisions(schedule: n.Schedule, e: n.Expr) -> Iterator[str]:
    """Yield the text of an expression with one // or % changed: to the other operator, to another divisor, or both.

    The other divisors are the first parameters. A divisor that is kept keeps its parentheses.
    """
    text, begin = as_written(e), e.span.column
    for part in subexpressions(e):
        if isinstance(part, n.Binary) and part.op in ("//", "%"):
            at = text.find(part.op, part.left.span.end_column - begin)
            after, end = at + len(part.op), part.right.span.end_column - begin
            for _ in range(text.count("(", after, part.right.span.column - begin)):  # the parentheses around the divisor
                end = text.index(")", end) + 1
            kept, space = text[after:end].strip(), " " if text[after] == " " else ""
            others = (name for name in first_parameters(schedule) if name != as_written(part.right))
            for new_op, new_divisor in product(("//", "%"), (kept, *others)):
                if (new_op, new_divisor) != (part.op, kept):
                    yield f"{text[:at]}{new_op}{space}{new_divisor}{text[end:]}"


def flipped_signs(e: n.Expr) -> Iterator[str]:
    """Yield the text of an expression with one + changed to - or one - to +."""
    text, begin = as_written(e), e.span.column
    for part in subexpressions(e):
        if isinstance(part, n.Binary) and part.op in "+-":
            at = text.find(part.op, part.left.span.end_column - begin, part.right.span.column - begin)
            if at >= 0:
                yield text[:at] + ("-" if part.op == "+" else "+") + text[at + 1 :]


_OTHER_STRICTNESS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def changed_strictness(e: n.Expr) -> Iterator[str]:
    """Yield the text of a condition with one < changed to <= or one <= to <, and the same for > and >=."""
    text, begin = as_written(e), e.span.column
    for part in subexpressions(e):
        if isinstance(part, n.Binary) and part.op in _OTHER_STRICTNESS:
            at = text.find(part.op, part.left.span.end_column - begin)
            yield text[:at] + _OTHER_STRICTNESS[part.op] + text[at + len(part.op) :]


_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def negated(e: n.Expr) -> str:
    """Return the text of the negated condition."""
    if isinstance(e, n.Binary) and e.op in _OPPOSITE:
        text = as_written(e)
        at = text.find(e.op, e.left.span.end_column - e.span.column)
        return text[:at] + _OPPOSITE[e.op] + text[at + len(e.op) :]  # operands keep their parentheses
    return f"not {as_written(e, inside=True)}"
