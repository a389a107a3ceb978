"""Small changes of a wrong placement, for the help of its finding: other ranges and other formulas. The caller tries them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chimerac.chimera_ir.diagnostics import Span
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.printer import as_written, shifted
from chimerac.compiler.syntax.walk import subexpressions

MAX_PARTS = 100  # parts of a formula; larger formulas have no variants
_SHIFTS = ((0, -1), (1, 0), (0, 1), (-1, 0), (-1, -1), (1, 1))  # what is added to the low and to the high end of a range
_BOUND_CHANGED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}  # comparison -> the one whose bound differs by one

Edit = tuple[Span, str]  # the replaced span; its new text
PipeVariant = tuple[n.PipeDecl, tuple[Edit, ...], str]  # the changed pipe; the edits of its text; the reason
_INCLUSIVE = "a range includes both ends"
_FROM_0 = "stages and ranks count from 0"


def pipe_variants(decl: n.PipeDecl, at: Span) -> Iterator[PipeVariant]:
    """Yield variants of a pipe.

    Args:
        at: where the finding is; the clause there is changed first.

    The first variants have one change each: a range is longer, shorter or shifted by one; in a formula, a branch of an `if` is
    larger or smaller by one, or a < becomes <= or the reverse, and the same for > and >=. After them come variants in which
    every range ends one lower, or is shifted down by one. What stands on several lines is not changed.
    """
    for k, clause in sorted(enumerate(decl.stages), key=lambda x: not _contains(x[1].span, at)):
        before, after = decl.stages[:k], decl.stages[k + 1 :]
        for bounds, new in _range_variants(clause.range):
            changed = replace(clause, range=bounds)
            yield replace(decl, stages=(*before, changed, *after)), ((bounds.span, new),), _INCLUSIVE
        for rank, span, new in _formula_variants(clause.rank):
            changed = replace(clause, rank=rank)
            yield replace(decl, stages=(*before, changed, *after)), ((span, new),), _FROM_0
    yield from _with_all_range_variants(decl)


def _with_all_range_variants(decl: n.PipeDecl) -> Iterator[PipeVariant]:
    """Yield variants in which every range that is on one line has the same change. None for fewer than two such ranges."""
    variants = [list(_range_variants(clause.range)) for clause in decl.stages]
    if sum(map(bool, variants)) < 2:
        return
    for shift, why in (((0, -1), _INCLUSIVE), ((-1, -1), _FROM_0)):
        stages, edits = [], []
        for clause, of_clause in zip(decl.stages, variants, strict=True):
            if of_clause:
                bounds, new = of_clause[_SHIFTS.index(shift)]
                clause = replace(clause, range=bounds)
                edits.append((bounds.span, new))
            stages.append(clause)
        yield replace(decl, stages=tuple(stages)), tuple(edits), why


def _contains(span: Span, part: Span) -> bool:
    """Return whether a span contains another one, or is the same."""
    begins, ends = (span.line, span.column), (span.end_line, span.end_column)
    return begins <= (part.line, part.column) and (part.end_line, part.end_column) <= ends


def _plus(e: n.Expr, by: int) -> n.Expr:
    """Return the expression `e + by`."""
    return n.Binary("+", e, n.Int(by, span=e.span), span=e.span)


def _range_variants(bounds: n.Range | None) -> Iterator[tuple[n.Range, str]]:
    """Yield a range with each of `_SHIFTS`, and its text. Nothing for no range, or for one over several lines."""
    if bounds is None or bounds.span.line != bounds.span.end_line:
        return
    for low, high in _SHIFTS:
        texts = [shifted(e, by) if by else as_written(e) for e, by in ((bounds.low, low), (bounds.high, high))]
        yield n.Range(_plus(bounds.low, low), _plus(bounds.high, high), span=bounds.span), " .. ".join(texts)


def _formula_variants(e: n.Expr) -> Iterator[tuple[n.Expr, Span, str]]:
    """Yield variants of a formula, each with the span of the changed part and the new text of this part."""
    parts = list(subexpressions(e))
    for part in parts if len(parts) <= MAX_PARTS else ():
        if part.span.line != part.span.end_line:
            continue
        match part:
            case n.Binary(op, left, right) if op in _BOUND_CHANGED:
                new = f"{as_written(left)} {_BOUND_CHANGED[op]} {as_written(right)}"
                yield _with_part(e, part, replace(part, op=_BOUND_CHANGED[op])), part.span, new
            case n.IfElse(_, then, otherwise):
                for branch in (x for x in (then, otherwise) if x.span.line == x.span.end_line):
                    yield from ((_with_part(e, branch, _plus(branch, by)), branch.span, shifted(branch, by)) for by in (-1, 1))
            case _:
                pass


def _with_part(e: n.Expr, old: n.Expr, new: n.Expr) -> n.Expr:
    """Return an expression in which a part is replaced."""
    if e is old:
        return new
    match e:
        case n.Unary(_, operand):
            return replace(e, operand=_with_part(operand, old, new))
        case n.Binary(_, left, right):
            return replace(e, left=_with_part(left, old, new), right=_with_part(right, old, new))
        case n.IfElse(condition, then, otherwise):
            parts = (_with_part(x, old, new) for x in (condition, then, otherwise))
            return n.IfElse(*parts, span=e.span)
        case n.Call(_, arguments):
            return replace(e, arguments=tuple(_with_part(x, old, new) for x in arguments))
        case _:
            return e
