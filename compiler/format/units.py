"""text of a schedule -> its tokens, and units of tokens: statements, clauses, rules and actions, block within block."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from chimerac.chimera_ir.diagnostics import Span
from chimerac.compiler.syntax import grammar
from chimerac.compiler.syntax import nodes as n

_OPERANDS = ("NAME", "INT", "RPAR", "RSQB")  # terminals that end an operand
_PRODUCT, _SUM = ("*", "//", "%"), ("+", "-")


@dataclass(slots=True)
class Token:
    """A token. unit: it begins a statement, clause, rule or action; task: it begins a task of a listing; binary: it is a + or -
    between two operands; tight: it has no spaces around it."""

    text: str
    line: int
    column: int
    unit: bool = False
    task: bool = False
    operand: bool = False  # it ends an operand, so a minus sign after it subtracts
    binary: bool = False
    tight: bool = False

    @property
    def end(self) -> int:
        return self.column + len(self.text)

    @property
    def comment(self) -> bool:
        return self.text.startswith("#")


@dataclass(slots=True)
class Block:
    """The units and comments between two braces."""

    open: Token
    close: Token
    items: list[Unit | Token] = field(default_factory=list)


@dataclass(slots=True)
class Unit:
    """A statement, clause, rule or action: tokens, comments and blocks. one_line: whether it can be on one line; None if that
    is not computed yet."""

    parts: list[Token | Block] = field(default_factory=list)
    one_line: bool | None = None

    @property
    def first(self) -> Token:
        head = self.parts[0]
        assert isinstance(head, Token)
        return head

    @property
    def last(self) -> Token:
        tail = self.parts[-1]
        return tail.close if isinstance(tail, Block) else tail


def tokens_of(text: str, tree: n.Schedule) -> list[Token]:
    """Return the tokens of a text whose syntax tree is this, comments among them."""
    starts, tasks = set(_unit_starts(tree)), {(s.line, s.column) for s in _task_spans(tree)}
    greedy = deque(s.span for s in tree.statements if isinstance(s, n.Greedy))
    tokens: list[Token] = []
    conditions = 0  # `if`s of expressions that wait for their `then`
    for found in grammar.tokens(text):
        place = found.line or 0, found.column or 0
        t = Token(found.rstrip(), place[0], place[1] - 1, place in starts, place in tasks, found.type in _OPERANDS)
        while greedy and (greedy[0].end_line, greedy[0].end_column) <= place:
            greedy.popleft()
        if greedy and (greedy[0].line, greedy[0].column) < place:
            t.unit |= t.text in ("prefer", "then") and not (conditions and t.text == "then")
            conditions += (t.text == "if") - (t.text == "then" and not t.unit)
        tokens.append(t)
    words = [t for t in tokens if not t.comment]
    for k, t in enumerate(words):
        t.binary = t.text in _SUM and words[k - 1].operand
    _tighten(words)
    return tokens


def _unit_starts(tree: n.Schedule) -> Iterator[tuple[int, int]]:
    """Yield the places (line, column) where units begin; `micro_batches`, `prefer` and `then` have no span of their own."""
    yield tree.span.line, tree.span.column
    for s in tree.statements:
        yield s.span.line, s.span.column
        inner: list[Span] = []
        match s:
            case n.PipeDecl():
                inner = [c.span for c in s.stages]
            case n.Ticks():
                inner = [x.span for x in (*s.lets, *s.rules, *s.fills)]
            case n.Greedy():
                inner = [x.span for x in (*s.costs, *s.groups, *s.limits)]
            case n.Listing():
                inner = list(_action_spans(s.actions))
            case _:
                pass
        yield from ((x.line, x.column) for x in inner)


def _action_spans(actions: tuple[n.Action, ...]) -> Iterator[Span]:
    joined = False
    for a in actions:
        if not joined:
            yield a.span
        joined = isinstance(a, n.TaskAction) and a.overlap
        for body in _bodies(a):
            # `else if` stays together: without braces, both end with the same brace.
            chained = len(body) == 1 and isinstance(a, n.Choice) and body is a.otherwise and _ends(body[0]) == _ends(a)
            yield from list(_action_spans(body))[chained:]


def _ends(a: n.Action) -> tuple[int, int]:
    return a.span.end_line, a.span.end_column


def _bodies(a: n.Action) -> tuple[tuple[n.Action, ...], ...]:
    match a:
        case n.Repeat():
            return (a.body,)
        case n.Choice():
            return a.then, a.otherwise
        case _:
            return ()


def _task_spans(tree: n.Schedule) -> Iterator[Span]:
    todo = [a for s in tree.statements if isinstance(s, n.Listing) for a in s.actions]
    while todo:
        a = todo.pop()
        if isinstance(a, n.TaskAction):
            yield a.span
        todo += [x for body in _bodies(a) for x in body]


def _tighten(words: list[Token]) -> None:
    """Mark operators without spaces: * and unary minus; // within a sum; all arithmetic within brackets."""
    brackets = 0
    before, after = _in_sums(words, -1), _in_sums(words, 1)
    for k, t in enumerate(words):
        brackets += (t.text == "[") - (t.text == "]")
        match t.text:
            case "*" | "/":
                t.tight = True
            case "//":
                t.tight = brackets > 0 or before[k] or after[k]
            case "%":
                t.tight = brackets > 0
            case "+" | "-":
                t.tight = brackets > 0 or not t.binary
            case _:
                pass
        t.unit |= t.text == "micro_batches"


def _in_sums(words: list[Token], direction: int) -> list[bool]:
    """Return for every token whether a quotient there is a term of a sum, by the tokens on one side of it.

    direction: -1 for those before, 1 for those after. Each result follows from that of the neighbour, so the time is linear."""
    result, closed, closing_of = [False] * len(words), [], {}
    for k in range(len(words)) if direction < 0 else reversed(range(len(words))):
        if words[k].text in (")", "]"):
            closed.append(k)
        elif words[k].text in ("(", "[") and closed:
            closing_of[k] = closed.pop()
        neighbour = k + direction
        if not 0 <= neighbour < len(words) or words[max(k, neighbour)].unit:
            continue
        t = words[neighbour]
        if t.text in ("(", "[") and direction > 0:
            result[k] = result[closing_of.get(neighbour, neighbour)]
        elif t.text not in ("(", "[", ")", "]"):
            result[k] = t.binary or ((t.operand or t.text in (*_PRODUCT, "-")) and result[neighbour])
    return result


def units_of(tokens: Iterator[Token], block: Block | None = None) -> Iterator[Unit | Token]:
    """Yield the units of a block or a file, and the comments between them."""
    unit, waiting = None, []  # waiting: comments, which belong to the unit if it continues after them
    for t in tokens:
        if t.comment:
            waiting.append(t)
            continue
        if t.unit or t.text == "}":
            if unit:
                yield unit
            yield from waiting
            unit, waiting = None, []
        if t.text == "}":
            assert block
            block.close = t
            return
        unit = unit or Unit()
        unit.parts += [*waiting, t]
        waiting = []
        if t.text == "{":
            unit.parts.pop()
            inner = Block(t, t)
            inner.items = list(units_of(tokens, inner))
            unit.parts.append(inner)
    if unit:
        yield unit
    yield from waiting
