"""text of a schedule -> its tokens, and units of tokens: statements, clauses, rules and actions. Blocks contain units."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from chimerac.chimera_ir.diagnostics import Span
from chimerac.compiler.syntax import grammar
from chimerac.compiler.syntax import nodes as n

# Terminals. Each but RSQB can end an operand. RSQB ends the index of a pipe, as in F down[i](s, m), or a family of pipes: as
# after a name, no space is written before a ( after it.
_OPERAND_ENDS = ("NAME", "INT", "RPAR", "RSQB")
_PRODUCT, _SUM = ("*", "//", "%"), ("+", "-")


@dataclass(slots=True)
class Token:
    """A token, which may be a comment.

    Attributes:
        line, column: where it is in the source, from 1 and from 0.
        starts_unit: it begins a unit (see `Unit`).
        starts_task: it begins a task of a listing.
        ends_operand: its terminal is one of _OPERAND_ENDS, so a - after it subtracts, and a ( after it has no space before it.
        is_binary: it is a + or - between two operands.
        is_tight: no spaces are written around it, but a unary minus may have one before it (layout.py).
    """

    text: str
    line: int
    column: int
    starts_unit: bool = False
    starts_task: bool = False
    ends_operand: bool = False
    is_binary: bool = False
    is_tight: bool = False

    @property
    def end(self) -> int:
        """The column after its last character."""
        return self.column + len(self.text)

    @property
    def is_comment(self) -> bool:
        return self.text.startswith("#")


@dataclass(slots=True)
class Block:
    """The units and comments between two braces."""

    open: Token
    close: Token
    items: list[Unit | Token] = field(default_factory=list)


@dataclass(slots=True)
class Unit:
    """A statement, clause, rule or action, or the line `schedule NAME`: tokens, comments and blocks.

    Attributes:
        one_line: whether it may be on one line; None until `layout.py` has computed it.
    """

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
    """Return the tokens of a text, including comments.

    Args:
        tree: its syntax tree.
    """
    starts, tasks = set(_unit_starts(tree)), {(s.line, s.column) for s in _task_spans(tree)}
    greedy = deque(s.span for s in tree.statements if isinstance(s, n.Greedy))
    tokens: list[Token] = []
    conditions = 0  # `if`s of expressions in a greedy block that wait for their `then`
    for lexed in grammar.tokens(text):
        place = lexed.line or 0, lexed.column or 0
        starts_unit = place in starts or lexed == "micro_batches"
        ends_operand = lexed.type in _OPERAND_ENDS
        t = Token(lexed.rstrip(), place[0], place[1] - 1, starts_unit, starts_task=place in tasks, ends_operand=ends_operand)
        while greedy and (greedy[0].end_line, greedy[0].end_column) <= place:
            greedy.popleft()
        if greedy and (greedy[0].line, greedy[0].column) < place:
            if t.text == "if":
                conditions += 1
            elif t.text == "then" and conditions:
                conditions -= 1
            elif t.text in ("prefer", "then"):
                t.starts_unit = True
        tokens.append(t)
    words = [t for t in tokens if not t.is_comment]
    for k, t in enumerate(words):
        t.is_binary = t.text in _SUM and words[k - 1].ends_operand
    _tighten(words)
    return tokens


def _unit_starts(tree: n.Schedule) -> Iterator[tuple[int, int]]:
    """Yield the places (line, column) where units begin, except `micro_batches`, `prefer` and `then`.

    These have no span of their own: `tokens_of` finds them by their text.
    """
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
    """Yield the spans of the actions that begin a unit: an overlapped pair is one unit."""
    in_pair = False
    for a in actions:
        if not in_pair:
            yield a.span
        in_pair = isinstance(a, n.TaskAction) and a.overlap
        for body in _bodies(a):
            # The `if` of `else if` begins no unit. It and the outer `if` end with the same brace, unlike in `else { if ... }`.
            is_else_if = isinstance(a, n.Choice) and body is a.otherwise and len(body) == 1 and _end(body[0]) == _end(a)
            inner = list(_action_spans(body))
            yield from inner[1:] if is_else_if else inner


def _end(a: n.Action) -> tuple[int, int]:
    return a.span.end_line, a.span.end_column


def _bodies(a: n.Action) -> tuple[tuple[n.Action, ...], ...]:
    """Return the actions in each block of an action."""
    match a:
        case n.Repeat():
            return (a.body,)
        case n.Choice():
            return a.then, a.otherwise
        case _:
            return ()


def _task_spans(tree: n.Schedule) -> Iterator[Span]:
    """Yield the spans of all tasks of a listing."""
    todo = [a for s in tree.statements if isinstance(s, n.Listing) for a in s.actions]
    while todo:
        a = todo.pop()
        if isinstance(a, n.TaskAction):
            yield a.span
        todo += [x for body in _bodies(a) for x in body]


def _tighten(words: list[Token]) -> None:
    """Mark the operators that are tight: *, the / of a size, and unary minus; // within a sum; within square brackets also
    //, % and binary + and -."""
    brackets = 0
    before, after = _in_sums(words, -1), _in_sums(words, 1)
    for k, t in enumerate(words):
        brackets += (t.text == "[") - (t.text == "]")
        match t.text:
            case "*" | "/":
                t.is_tight = True
            case "//":
                t.is_tight = brackets > 0 or before[k] or after[k]
            case "%":
                t.is_tight = brackets > 0
            case "+" | "-":
                t.is_tight = brackets > 0 or not t.is_binary
            case _:
                pass


def _in_sums(words: list[Token], direction: int) -> list[bool]:
    """Return for every token whether a product at its place would be a term of a sum, judged by the tokens on one side of it.

    Args:
        direction: -1 for the tokens before, 1 for those after.

    Each result follows from that of the neighbour on that side, so the time is linear. With direction 1, brackets that follow a
    token are skipped: its result is that of the closing one. With direction -1, the result right after a closing bracket is
    False.
    """
    result = [False] * len(words)
    # Both are read with direction 1 only, which goes from the end to the beginning. With direction -1 they mean nothing.
    closed: list[int] = []  # the closing brackets whose opening ones have not been reached
    closing_of: dict[int, int] = {}  # opening bracket -> closing one
    for k in range(len(words)) if direction < 0 else reversed(range(len(words))):
        if words[k].text in (")", "]"):
            closed.append(k)
        elif words[k].text in ("(", "[") and closed:
            closing_of[k] = closed.pop()
        neighbour = k + direction
        if not 0 <= neighbour < len(words) or words[max(k, neighbour)].starts_unit:
            continue
        t = words[neighbour]
        if t.text in ("(", "[") and direction > 0:
            result[k] = result[closing_of.get(neighbour, neighbour)]
        elif t.text not in ("(", "[", ")", "]"):
            result[k] = t.is_binary or ((t.ends_operand or t.text in (*_PRODUCT, "-")) and result[neighbour])
    return result


def units_of(tokens: Iterator[Token], block: Block | None = None) -> Iterator[Unit | Token]:
    """Yield the units of a block or a file, and the comments between them.

    Args:
        tokens: from the first one after the block's opening brace on.
        block: None for a file. The closing brace of the block ends its units, and becomes its `close`.
    """
    unit, waiting = None, []  # waiting: comments, which belong to the unit if it continues after them
    for t in tokens:
        if t.is_comment:
            waiting.append(t)
            continue
        if t.starts_unit or t.text == "}":
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
            inner = Block(t, close=t)  # units_of replaces `close`
            inner.items = list(units_of(tokens, inner))
            unit.parts.append(inner)
    if unit:
        yield unit
    yield from waiting
