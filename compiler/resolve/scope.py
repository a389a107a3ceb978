"""The names that an expression may use: scopes, lets, and the names that pipes, costs and orders bind (E207)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.findings import given_twice
from chimerac.compiler.resolve.types import Scope, Type, check, result_type
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.walk import names_in, subexpressions

# The conventional meanings of these names. A greedy block predefines them.
MEANINGS = {"s": "stage", "m": "micro-batch", "p": "pipe", "r": "rank"}
# What a name is bound to -> the help if this name is s, m, p or r, which by convention stands for something else.
_OTHER_NAME = {
    "index of a pipe": "number the pipes of a family with another name, such as i",
    "number of a group": "groups are numbered by a name of their own, such as g: m = 2*g .. 2*g + 1",
}


def define(scope: Scope, binder: n.Identifier, type: Type, found: list[Diagnostic]) -> None:
    """Add a name to a scope. Add E207 to the findings if the text has defined it already."""
    if first := scope.where(binder.name):
        found.append(given_twice(f"'{binder.name}' is defined twice", binder.span, first))
    scope.add(binder, type)


def type_of_let(e: n.Expr, scope: Mapping[str, Type]) -> Type:
    """Return the type of a let with this value. A wrong value has a type too, so that one mistake gives one finding."""
    match e:
        case n.Binary():
            return result_type(e)
        case n.Unary():
            return "integer" if e.op == "-" else "truth value"
        case n.Name():
            return scope.get(e.name, "integer")
        case n.IfElse():
            return type_of_let(e.then, scope)
        case _:
            return "integer"


def define_let(scope: Scope, let: n.Let, found: list[Diagnostic]) -> None:
    """Check the value of a let, and add its name to the scope."""
    type = type_of_let(let.value, scope)
    check(let.value, scope, type, found)
    define(scope, let.name, type, found)


def local(scope: Scope, bound: Sequence[tuple[n.Identifier, str]], found: list[Diagnostic], help: str = "") -> Scope:
    """Return a scope with more integers.

    Adds E207 for each name that the text has defined already, and for the first of the others that is s, m, p or r, in upper or
    lower case, but stands for something else.

    Args:
        bound: the names, and for what each stands, '' if any name is allowed.
        help: for such an s, m, p or r, where `_OTHER_NAME` has none.
    """
    inner = Scope(scope)
    conflicts = [(binder, what, meaning) for binder, what in bound if (meaning := _conflicting_meaning(binder.name, what))]
    names = [binder.name for binder, _ in bound]
    for binder, what, meaning in [x for x in conflicts if x[0].name not in scope and names.count(x[0].name) == 1][:1]:
        message = f"'{binder.name}' means the {meaning}, and is used here for the {what}"
        found.append(Diagnostic("E207", message, binder.span, help=_OTHER_NAME.get(what, help)))
    for binder, _ in bound:
        define(inner, binder, "integer", found)
    # Formulas may also use the conventional name of what is bound, so that one mistake gives one finding.
    for _, what, _ in conflicts:
        inner.add_integers(name for name, meaning in MEANINGS.items() if meaning == what)
    return inner


def _conflicting_meaning(name: str, what: str) -> str:
    """Return the conventional meaning of a name that is bound to something else here, or '' if that is allowed."""
    meaning = MEANINGS.get(name.casefold(), what)
    return "" if not what or meaning == what or (meaning, what) == ("pipe", "index of a pipe") else meaning


def with_hints(scope: Scope, instead: Mapping[str, str]) -> Scope:
    """Return a scope with these helps for unknown names, in the place of the outer ones.

    Args:
        instead: name -> help.
    """
    inner = Scope(scope)
    inner.hints = instead
    return inner


def index_binder(ref: n.PipeRef, scope: Mapping[str, object]) -> n.Identifier | None:
    """Return the name that `down[i]` binds. None without an index, or for a known name or a formula, which selects one pipe."""
    if isinstance(ref.index, n.Name) and ref.index.name not in scope:
        return n.Identifier(ref.index.name, span=ref.index.span)
    return None


def names_in_group(rule: n.Rule) -> list[n.Name]:
    """Return the names in the range of a rule's groups, in the order of the text; none if the rule has no groups."""
    if rule.group is None:
        return []
    return [part for e in (rule.group.low, rule.group.high) for part in subexpressions(e) if isinstance(part, n.Name)]


def counter_of(rule: n.Rule, known: Container[str]) -> n.Identifier | None:
    """Return the name that numbers the groups of a rule: the first unknown name in their range, or None."""
    new = next((name for name in names_in_group(rule) if name.name not in known), None)
    return n.Identifier(new.name, span=new.span) if new else None


def needed_lets(lets: tuple[n.Let, ...], expressions: list[n.Expr], budget: Budget) -> list[n.Let]:
    """Return the lets of an order block that these expressions use, directly or through other lets, in their order.

    Raises ChimeraError E211 if the budget has too few operations left.
    """
    names = {name for e in expressions for name in names_in(e)}
    needed: list[n.Let] = []
    for let in reversed(lets):
        if let.name.name in names:
            needed.insert(0, let)
            inner = list(subexpressions(let.value))
            budget.spend(8 * len(inner), let.span)
            names |= {e.name for e in inner if isinstance(e, n.Name)}
    return needed
