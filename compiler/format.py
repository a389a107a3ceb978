"""text of a schedule -> the same text in its usual spelling: indentation, spaces around operators, empty lines.

What the author decides stays: which statements share a line, where a block is broken, comments, and wider gaps that put
things under each other. The tokens are laid out anew, never the tree, so nothing that the tree does not know is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from chimera_ir.diagnostics import Source, Span
from compiler.syntax import nodes as n
from compiler.syntax.parse import keywords, parse

WIDTH = 120
INDENT = 4

_TOKEN = re.compile(r"#[^\n]*|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|\.\.|//|[=!<>]=|[^\s]")
_PRODUCT, _SUM = ("*", "//", "%"), ("+", "-")
# Before these the author may leave a wider gap.
_ALIGNED = ("{", "on", "at", "when", "recompute", "=")


@dataclass(slots=True)
class _Token:
    """unit: it begins a statement, clause, rule or action; tight: no spaces around it."""

    text: str
    line: int
    column: int
    unit: bool = False
    task: bool = False
    operand: bool = False  # it ends an operand: what follows a minus sign subtracts
    binary: bool = False
    tight: bool = False

    @property
    def end(self) -> int:
        return self.column + len(self.text)

    @property
    def comment(self) -> bool:
        return self.text.startswith("#")


@dataclass(slots=True)
class _Block:
    """From brace to brace: units and comments."""

    open: _Token
    close: _Token
    items: list[_Unit | _Token] = field(default_factory=list)


@dataclass(slots=True)
class _Unit:
    """A statement, clause, rule or action: tokens, comments and blocks."""

    parts: list[_Token | _Block] = field(default_factory=list)

    @property
    def first(self) -> _Token:
        head = self.parts[0]
        assert isinstance(head, _Token)
        return head

    @property
    def last(self) -> _Token:
        tail = self.parts[-1]
        return tail.close if isinstance(tail, _Block) else tail


def format_schedule(source: Source) -> str:
    """Return the formatted text of a schedule. Raises ChimeraError with its syntax errors."""
    tree = parse(source)
    tokens = _tokens(source.text, tree)
    items = list(_items(iter(tokens)))
    writer = _Writer()
    writer.items(items, 0)
    text = writer.text()
    for comment in (False, True):
        again = [m[0] for m in _TOKEN.finditer(text) if m[0].startswith("#") == comment]
        assert again == [t.text for t in tokens if t.comment == comment], "formatting changed more than spaces"
    return text


# --- text -> tokens -> units --------------------------------------------------------------------------------------------


def _tokens(text: str, tree: n.Schedule) -> list[_Token]:
    starts, tasks = set(_unit_starts(tree)), {(s.line, s.column) for s in _task_spans(tree)}
    greedy = [s.span for s in tree.statements if isinstance(s, n.Greedy)]
    tokens: list[_Token] = []
    conditions = 0  # `if`s of expressions that wait for their `then`
    for number, line in enumerate(text.split("\n"), 1):
        for found in _TOKEN.finditer(line):
            t = _Token(found[0].rstrip(), number, found.start())
            place = (t.line, t.column + 1)
            t.unit, t.task = place in starts, place in tasks
            t.operand = t.text in (")", "]") or bool(re.match(r"\w", t.text) and t.text not in keywords())
            if any((s.line, s.column) < place < (s.end_line, s.end_column) for s in greedy):
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
                inner = [x.span for x in (*s.lets, *s.rules)]
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
            yield from _action_spans(body)


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


def _tighten(words: list[_Token]) -> None:
    """Mark operators without spaces: * and signs; // within a sum; all arithmetic within brackets."""
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


def _in_sums(words: list[_Token], way: int) -> list[bool]:
    """Return for every token whether a quotient there is a term of a sum, looking one way. Each looks only at its
    neighbour, whose answer is known: a product may be of any length."""
    result, closed, partner = [False] * len(words), [], {}
    for k in range(len(words)) if way < 0 else reversed(range(len(words))):
        if words[k].text in (")", "]"):
            closed.append(k)
        elif words[k].text in ("(", "[") and closed:
            partner[k] = closed.pop()
        beside = k + way
        if not 0 <= beside < len(words) or words[max(k, beside)].unit:
            continue
        t = words[beside]
        if t.text in ("(", "[") and way > 0:
            result[k] = result[partner.get(beside, beside)]
        elif t.text not in ("(", "[", ")", "]"):
            result[k] = t.binary or ((t.operand or t.text in (*_PRODUCT, "-")) and result[beside])
    return result


def _items(tokens: Iterator[_Token], block: _Block | None = None) -> Iterator[_Unit | _Token]:
    """Yield the units of a block or a file, and the comments between them."""
    unit, waiting = None, []  # comments: within a unit if it goes on after them
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
        unit = unit or _Unit()
        unit.parts += [*waiting, t]
        waiting = []
        if t.text == "{":
            unit.parts.pop()
            inner = _Block(t, t)
            inner.items = list(_items(tokens, inner))
            unit.parts.append(inner)
    if unit:
        yield unit
    yield from waiting


# --- units -> text ------------------------------------------------------------------------------------------------------


def _gap(before: _Token, t: _Token) -> int:
    """Return the spaces between two tokens of a unit."""
    if t.text in (",", ")", "]", "[") or before.text in ("(", "[") or before.tight or t.tight:
        # A sign stands apart from what is before it.
        return int(t.tight and t.text == "-" and not t.binary and before.text not in ("(", "[") and not before.tight)
    if t.text == "(":
        return int(not before.operand)
    return 1


def _one_line(u: _Unit) -> bool:
    """Return whether a unit may stand on one line: no comment in it, and no block that the author broke."""
    return all(
        (p.open.line == p.close.line and all(isinstance(i, _Unit) and _one_line(i) for i in p.items))
        if isinstance(p, _Block)
        else not p.comment
        for p in u.parts
    )


def _least(before: _Unit, u: _Unit) -> int:
    """Return the gap between two units beside each other: tasks stand closer than statements."""
    return 2 if before.first.task and u.first.task else 3


class _Line:
    """A line in the making. anchor: where the author's line began: the column now, and the token. Columns count from it."""

    def __init__(self, wide: bool = True) -> None:
        self.text, self.wide = "", wide
        self.anchor: tuple[int, _Token] | None = None
        self.before: _Token | None = None

    def add(self, t: _Token, gap: int, aligned: bool = False) -> None:
        """Append a token after a gap, a wider one where the author left one."""
        column = len(self.text) + gap
        match self.before, self.anchor:
            case _Token() as before, (start, token) if aligned and self.wide and before.line == t.line == token.line:
                if t.column - before.end > gap:
                    column = max(column, start + t.column - token.column)
        self.text = self.text.ljust(column) + t.text
        if self.anchor is None or self.anchor[1].line != t.line:
            self.anchor = column, t
        self.before = t

    def tokens(self, u: _Unit, gap: int, aligned: bool) -> None:
        """Append a unit that stands on one line, or more of it than fits there."""
        for k, part in enumerate(u.parts):
            if len(self.text) > WIDTH:
                return
            if isinstance(part, _Block):
                self.add(part.open, 1, aligned=True)
                for i, item in enumerate(part.items):
                    assert isinstance(item, _Unit)
                    beside = part.items[i - 1] if i else None
                    self.tokens(item, _least(beside, item) if isinstance(beside, _Unit) else 1, beside is not None)
                self.add(part.close, 1)
            elif k == 0:
                self.add(part, gap, aligned)
            else:
                assert self.before
                self.add(part, _gap(self.before, part), part.text in _ALIGNED)


def _flat(u: _Unit, wide: bool = True) -> str:
    line = _Line(wide)
    line.tokens(u, 0, aligned=False)
    return line.text


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.line = _Line()
        self.closed = True  # nothing can be added to this line: it is empty, or ends with a comment

    def text(self) -> str:
        return "\n".join([*self.lines, self.line.text]).strip("\n") + "\n"

    def newline(self, indent: int, wide: bool = True) -> None:
        if self.line.text.strip():
            self.lines.append(self.line.text)
        self.line = _Line(wide)
        self.line.text = " " * indent

    def comment(self, t: _Token, before: _Token | None, indent: int) -> None:
        """Write a comment, beside what it stood beside."""
        if before is not None and before.line == t.line and not before.comment:
            self.line.add(t, 2, aligned=True)
        else:
            self.newline(indent)
            self.line.text += t.text
        self.line.before = t

    def items(self, items: list[_Unit | _Token], indent: int, opened: _Token | None = None) -> None:
        """Write what stands in a block, or in the file."""
        before = opened
        for k, item in enumerate(items):
            first = item.first if isinstance(item, _Unit) else item
            beside = items[k - 1] if k else None
            if before is not None and k and first.line > before.line + 1:
                self.newline(0)
                self.lines.append("")
            if isinstance(item, _Token):
                self.comment(item, before, indent)
                before = item
                continue
            if isinstance(beside, _Unit) and beside.last.line == item.first.line and self.beside(item, beside):
                pass
            else:
                self.newline(indent)
                self.unit(item, indent)
            before = item.last

    def beside(self, u: _Unit, neighbour: _Unit) -> bool:
        """Write a unit beside its neighbour if it fits there."""
        if not _one_line(u):
            return False
        line = _Line()
        line.text, line.anchor, line.before = self.line.text, self.line.anchor, self.line.before
        line.tokens(u, _least(neighbour, u), aligned=True)
        if len(line.text) > WIDTH:
            return False
        self.line = line
        return True

    def unit(self, u: _Unit, indent: int) -> None:
        """Write a unit at the beginning of a line."""
        if _one_line(u):
            for wide in (True, False):
                if len(_flat(u, wide)) + indent <= WIDTH:
                    self.line.wide = wide
                    self.line.tokens(u, 0, aligned=False)
                    self.line.wide = True
                    return
        pieces = list(_pieces(u))
        for k, piece in enumerate(pieces):
            if isinstance(piece, _Block):
                self.block(piece, indent)
            else:
                self.run(piece, indent, k == 0)

    def run(self, tokens: list[_Token], indent: int, first: bool) -> None:
        """Write the tokens between two blocks: on one line if they fit, else broken where the author broke them."""
        line = _Line()
        line.text, line.before = self.line.text, self.line.before
        for k, t in enumerate(tokens):
            line.add(t, 0 if first and k == 0 else _gap(line.before, t) if line.before else 0)
        keep = len(line.text) > WIDTH or any(t.comment for t in tokens)
        for k, t in enumerate(tokens):
            before = self.line.before
            if t.comment:
                self.comment(t, before, indent + INDENT)
            elif first and k == 0:
                self.line.add(t, 0)
            elif before is None or before.comment or (keep and before.line < t.line):
                self.newline(indent + INDENT)
                self.line.add(t, 0)
            else:
                self.line.add(t, _gap(before, t), t.text in _ALIGNED)

    def block(self, b: _Block, indent: int) -> None:
        """Write a block after what stands before it."""
        before = self.line.before
        assert before is not None
        if before.comment:
            self.newline(indent + INDENT)
            self.line.add(b.open, 0)
        elif _one_line(_Unit([b])):
            line = _Line()
            line.text, line.anchor, line.before = self.line.text, self.line.anchor, before
            line.tokens(_Unit([b]), 1, aligned=True)
            if len(line.text) <= WIDTH:
                self.line = line
                return
            self.line.add(b.open, 1)
        else:
            self.line.add(b.open, 1, aligned=True)
        self.items(b.items, indent + INDENT, b.open)
        self.newline(indent)
        self.line.add(b.close, 0)


def _pieces(u: _Unit) -> Iterator[list[_Token] | _Block]:
    """Yield the blocks of a unit and the tokens between them."""
    run: list[_Token] = []
    for part in u.parts:
        if isinstance(part, _Block):
            if run:
                yield run
            run = []
            yield part
        else:
            run.append(part)
    if run:
        yield run
