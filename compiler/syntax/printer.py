"""syntax tree -> text: in a canonical form, which parses to the same tree, or as the author wrote an expression.

The canonical form has parentheses only where they are needed, and around each `if` that is an operand.
"""

from __future__ import annotations

from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.walk import left_spine

_PRECEDENCE = {"or": 1, "and": 2, "not": 3, "==": 4, "!=": 4, "<=": 4, ">=": 4, "<": 4, ">": 4,
          "+": 5, "-": 5, "*": 6, "//": 6, "%": 6}  # fmt: skip
_NEGATION = 7  # the precedence of a unary minus


def as_written(e: n.Expr, inside: bool = False) -> str:
    """Return the author's own text of an expression.

    Args:
        inside: put it in parentheses, as a part of a larger expression, unless it is a number, a name or a call.
    """
    return f"({e.span.text})" if inside and not isinstance(e, n.Int | n.Name | n.Call) else e.span.text


def as_term(e: n.Expr) -> str:
    """Return the author's own text of an expression, to be followed by + or - and a term."""
    last = e
    while isinstance(last, n.Binary | n.Unary):
        last = last.right if isinstance(last, n.Binary) else last.operand
    # Without parentheses the term would be added to the last branch of the `if`.
    return as_written(e, inside=isinstance(last, n.IfElse))


def shifted(e: n.Expr, amount: int) -> str:
    """Return the author's own text of an expression with an amount added.

    If the expression is a number, or a sum or a difference on one line with a number as its last term, only this number and its
    sign are changed: `s - 1` with 3 added is `s + 2`, and with 1 added it is `s`.
    """
    match e:
        case n.Int():
            return str(e.value + amount)
        case n.Binary("+" | "-", _, n.Int(value)) if e.span.line == e.span.end_line:
            value = (value if e.op == "+" else -value) + amount
            text, number_begins = e.span.text, e.right.span.column - e.span.column
            kept = text[: text.rindex(e.op, 0, number_begins)].rstrip()
            return kept + (f" {'-' if value < 0 else '+'} {abs(value)}" if value else "")
        case _:
            return f"{as_term(e)} {'-' if amount < 0 else '+'} {abs(amount)}"


def print_schedule(schedule: n.Schedule) -> str:
    """Return the text of a tree."""
    return "\n".join([f"schedule {schedule.name.name}", *map(_statement, schedule.statements)]) + "\n"


def _statement(s: n.Statement) -> str:
    match s:
        case n.Param():
            return f"param {s.name.name}" + (f" = {expression(s.default)}" if s.default is not None else "")
        case n.Require():
            return f"require {expression(s.condition)}"
        case n.Let():
            return f"let {s.name.name} = {expression(s.value)}"
        case n.Setting():
            return f"{s.what} {expression(s.value)}"
        case n.PipeDecl():
            family = f"[{s.family.binder.name} in {_range(s.family.range)}]" if s.family else ""
            clauses = "".join(f"    {_stage_clause(c)}\n" for c in s.stages)
            return f"pipe {s.name.name}{family} {{\n{clauses}    micro_batches {expression(s.micro_batches)}\n}}"
        case n.Size():
            return f"size {s.numerator}/{s.denominator}"
        case n.Greedy():
            body = [_statement(c) for c in s.costs]
            body += [f"prefer {', '.join(b.name for b in s.prefer)}"] if s.prefer else []
            body += [f"then {', '.join(map(_key, s.keys))}"] if s.keys else []
            body += [f"group {g.kind.name} by {expression(g.size)}" for g in s.groups]
            body += [f"limit {expression(x.condition)}" + ("" if x.scope == "rank" else f" per {x.scope}") for x in s.limits]
            return "order greedy {\n" + "".join(f"    {line}\n" for line in body) + "}"
        case n.Listing():
            return f"order listing for rank {s.rank.name} {{\n{_actions(s.actions, 1)}}}"
        case n.Ticks():
            body = [_statement(x) for x in s.lets] + [_rule(r) for r in s.rules] + [_fill(x) for x in s.fills]
            return "order ticks {\n" + "".join(f"    {line}\n" for line in body) + "}"
        case n.CostStatement():
            return "cost " + ", ".join(map(_cost, s.costs))
        case n.Sync():
            return f"sync {s.policy}"
        case n.TiedDecl():
            return f"tied {s.name.name} on stages {', '.join(map(expression, s.stages))}"
        case n.MemoryLimit():
            return f"limit {s.what.name} <= {expression(s.value)}"


def _range(r: n.Range) -> str:
    return f"{expression(r.low)} .. {expression(r.high)}"


def _stage_clause(c: n.StageClause) -> str:
    bounds = f" in {_range(c.range)}" if c.range else ""
    recompute = ""
    if c.recompute:
        recompute = " recompute" + (f" when {expression(c.recompute.condition)}" if c.recompute.condition else "")
    return f"stage {c.binder.name}{bounds} on rank {expression(c.rank)}{recompute}"


def _key(k: n.Key) -> str:
    return f"{'larger' if k.larger else 'smaller'} {expression(k.value)}"


def _actions(actions: tuple[n.Action, ...], depth: int) -> str:
    """Return the lines of a listing's block. The two tasks of an overlapped pair are on one line."""
    indent, text, joined = "    " * depth, "", False
    for a in actions:
        match a:
            case n.TaskAction():
                text += (" " if joined else indent) + _task(a) + (" &" if a.overlap else "\n")
                joined = a.overlap
            case n.Repeat():
                head = f"{a.binder.name} in {expression(a.low)} .. " if a.binder and a.low else ""
                text += f"{indent}repeat {head}{expression(a.count)} {{\n{_actions(a.body, depth + 1)}{indent}}}\n"
            case n.Choice():
                text += f"{indent}if {expression(a.condition)} {{\n{_actions(a.then, depth + 1)}{indent}}}"
                text += f" else {{\n{_actions(a.otherwise, depth + 1)}{indent}}}\n" if a.otherwise else "\n"
            case n.Let():
                text += f"{indent}{_statement(a)}\n"
    return text


def _task(a: n.TaskAction) -> str:
    arguments = [expression(a.stage)] if a.stage else []
    if a.first:
        arguments.append(expression(a.first) + (f" .. {expression(a.last)}" if a.last else ""))
    return a.kind.name + _pipe(a.pipe) + (f"({', '.join(arguments)})" if arguments else "")


def _pipe(pipe: n.PipeRef | None) -> str:
    """Return a space and the pipe of a task or a rule, or '' if it names none."""
    if pipe is None:
        return ""
    return f" {pipe.name.name}" + (f"[{expression(pipe.index)}]" if pipe.index else "")


def _cost(c: n.Cost) -> str:
    stage = f"({c.stage.name})" if c.stage else ""
    return f"{c.kind.name}{stage} = {expression(c.value)}"


def _rule(r: n.Rule) -> str:
    when = f" when {expression(r.condition)}" if r.condition else ""
    group = f" = {_range(r.group)}" if r.group else ""
    return f"{r.kind.name}{_pipe(r.pipe)}({r.stage.name}, {r.micro_batch.name}{group}){when} at {expression(r.tick)}"


def _fill(x: n.Fill) -> str:
    return f"fill {x.kind.name}({x.rank.name}, {x.number.name}) at {expression(x.tick)}"


def _left_precedence(e: n.Binary) -> int:
    """Return the least precedence that the left operand may have without parentheses.

    Comparisons do not chain, so their operands must bind more tightly. The other operators associate to the left.
    """
    precedence = _PRECEDENCE[e.op]
    return precedence + 1 if precedence == _PRECEDENCE["=="] else precedence


def expression(e: n.Expr, min_precedence: int = 0) -> str:
    """Return the text of an expression, in parentheses if its operator has a lower precedence than `min_precedence`.

    An `if` has parentheses unless `min_precedence` is 0.
    """
    match e:
        case n.Int():
            return str(e.value)
        case n.Name():
            return e.name
        case n.Call():
            return f"{e.function}({', '.join(map(expression, e.arguments))})"
        case n.IfElse():
            text = f"if {expression(e.condition)} then {expression(e.then)} else {expression(e.otherwise)}"
            return f"({text})" if min_precedence else text
        case n.Unary():
            precedence = _NEGATION if e.op == "-" else _PRECEDENCE["not"]
            text = e.op + ("" if e.op == "-" else " ") + expression(e.operand, precedence)
        case n.Binary():
            first, operations = left_spine(e)
            parts, opened = [expression(first, _left_precedence(operations[0]))], 0
            for operation, outer in zip(operations, [*operations[1:], None], strict=True):
                precedence = _PRECEDENCE[operation.op]
                parts.append(f" {operation.op} {expression(operation.right, precedence + 1)}")
                # The text so far is the left operand of `outer`, the next operation.
                if outer is not None and precedence < _left_precedence(outer):
                    parts.append(")")
                    opened += 1
            text = "(" * opened + "".join(parts)
    return f"({text})" if precedence < min_precedence else text
