"""The names that an expression may use, and their types (E202, E207)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chimera_ir.diagnostics import Diagnostic, Span
from compiler.resolve.expressions import Type, check, inside, names_in, spend
from compiler.syntax import nodes as n


class Scope(Mapping[str, Type]):
    """Names and their types: its own, and those of the scope around it, which are not copied: a listing may have thousands of
    names and of blocks."""

    def __init__(self, outer: Scope | None = None) -> None:
        self._outer = outer
        self._own: dict[str, tuple[Type, Span]] = {}

    def _find(self, name: object) -> tuple[Type, Span] | None:
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
        """Return where a name is defined."""
        found = self._find(name)
        return found and found[1]

    def add(self, binder: n.Binder, kind: Type) -> None:
        self._own[binder.name] = kind, binder.span


def twice(message: str, span: Span, first: Span, help: str = "choose another name") -> Diagnostic:
    """Return the finding about what stands once and was given before."""
    return Diagnostic("E207", message, span, notes=(f"first at {first}",), help=help)


def define(scope: Scope, binder: n.Binder, kind: Type, found: list[Diagnostic]) -> None:
    """Add a name to a scope, and E207 where it is there already."""
    if first := scope.where(binder.name):
        found.append(twice(f"'{binder.name}' is defined twice", binder.span, first))
    scope.add(binder, kind)


def _kind_of(e: n.Expr, scope: Mapping[str, Type]) -> Type:
    """Return the type that a let takes from its value."""
    match e:
        case n.Binary():
            return "integer" if e.op in ("+", "-", "*", "//", "%") else "truth value"
        case n.Unary():
            return "integer" if e.op == "-" else "truth value"
        case n.Name():
            return scope.get(e.name, "integer")
        case n.IfElse():
            return _kind_of(e.then, scope)
        case _:
            return "integer"


def define_let(scope: Scope, let: n.Let, found: list[Diagnostic]) -> None:
    """Check the value of a let and add its name."""
    kind = _kind_of(let.value, scope)
    check(let.value, scope, kind, found)
    define(scope, let.name, kind, found)


def local(scope: Scope, binders: list[n.Binder], found: list[Diagnostic]) -> Scope:
    """Return the scope with names bound here; a name means one thing at a place."""
    inner = Scope(scope)
    for binder in binders:
        define(inner, binder, "integer", found)
    return inner


def index_binder(ref: n.PipeRef, scope: Mapping[str, object]) -> n.Binder | None:
    """Return the name that `down[i]` binds; an index that is a known name or a formula selects one pipe instead."""
    if isinstance(ref.index, n.Name) and ref.index.name not in scope:
        return n.Binder(ref.index.name, span=ref.index.span)
    return None


def counter_of(rule: n.Rule, scope: Mapping[str, object]) -> n.Binder | None:
    """Return the name that numbers the groups of a rule: the first of its range that means nothing else."""
    if rule.group is None:
        return None
    new = [name for e in (rule.group.low, rule.group.high) for name in names_in(e) if name not in scope]
    return n.Binder(new[0], span=rule.group.span) if new else None


def needed_lets(lets: tuple[n.Let, ...], expressions: list[n.Expr]) -> list[n.Let]:
    """Return the lets of an order block that these expressions need, in order: a let is read where it is used."""
    names = {name for e in expressions for name in names_in(e)}
    needed: list[n.Let] = []
    for let in reversed(lets):
        if let.name.name in names:
            needed.insert(0, let)
            inner = list(inside(let.value))
            spend(8 * len(inner), let.span)
            names |= {e.name for e in inner if isinstance(e, n.Name)}
    return needed
