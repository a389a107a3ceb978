"""units -> text: line breaks, the widths of gaps, and indentation."""

from __future__ import annotations

from collections.abc import Iterator

from chimerac.compiler.format.units import Block, Token, Unit

WIDTH = 120  # characters that a line may have; one that cannot be broken may have more
INDENT = 4

# Before these tokens the author may leave a wider gap, which is kept.
_ALIGNED = ("{", "on", "at", "when", "recompute", "=")


def _gap(before: Token, t: Token) -> int:
    """Return the number of spaces between two tokens of a unit."""
    if t.text in (",", ")", "]", "[") or before.text in ("(", "[") or before.is_tight or t.is_tight:
        # There is no gap, except before a unary minus that follows neither an opening bracket nor a tight operator.
        is_sign = t.is_tight and t.text == "-" and not t.is_binary
        return 1 if is_sign and before.text not in ("(", "[") and not before.is_tight else 0
    return 0 if t.text == "(" and before.ends_operand else 1


def _one_line(u: Unit) -> bool:
    """Return whether a unit may be on one line, if it fits there.

    It may if it has no comment, and no block that the author wrote on several lines.
    """
    if u.one_line is None:  # cached: it is needed again for every enclosing block
        u.one_line = all(
            (p.open.line == p.close.line and all(isinstance(i, Unit) and _one_line(i) for i in p.items))
            if isinstance(p, Block)
            else not p.is_comment
            for p in u.parts
        )
    return u.one_line


def _min_gap(before: Unit, u: Unit) -> int:
    """Return the least number of spaces between two units on one line: fewer between tasks than between statements."""
    return 2 if before.first.starts_task and u.first.starts_task else 3


class _Line:
    """A line that is being written.

    Args:
        wide: with the wider gaps of the source.

    Attributes:
        before: the last token that was written.
        anchor: (column in this line, token) of the first token written here that is on the same line of the source as `before`.
            A token after a wider gap keeps its distance from the anchor.
    """

    def __init__(self, wide: bool = True) -> None:
        self.wide = wide
        self.parts: list[str] = []
        self.length = 0
        self.anchor: tuple[int, Token] | None = None
        self.before: Token | None = None

    @property
    def text(self) -> str:
        """The text of the line."""
        return "".join(self.parts)

    def append_text(self, text: str) -> None:
        """Append a text as it is."""
        self.parts.append(text)
        self.length += len(text)

    def copy(self) -> _Line:
        """Return a copy of this line, to try what fits."""
        line = _Line(self.wide)
        line.append_text(self.text)
        line.anchor, line.before = self.anchor, self.before
        return line

    def add(self, t: Token, gap: int, aligned: bool = False) -> None:
        """Append a token after a gap.

        Args:
            aligned: the gap may be wider, as in the source.
        """
        column = self.length + gap
        match self.before, self.anchor:
            case Token() as before, (anchor_column, anchor) if aligned and self.wide and before.line == t.line == anchor.line:
                if t.column - before.end > gap:
                    column = max(column, anchor_column + t.column - anchor.column)
        self.append_text(" " * (column - self.length) + t.text)
        if self.anchor is None or self.anchor[1].line != t.line:
            self.anchor = column, t
        self.before = t

    def add_unit(self, u: Unit, gap: int, aligned: bool) -> None:
        """Append a unit after a gap.

        Args:
            aligned: as in `add`.

        Stops when the line is longer than WIDTH: then the caller does not use it.
        """
        for k, part in enumerate(u.parts):
            if self.length > WIDTH:
                return
            if isinstance(part, Block):
                self.add(part.open, 1, aligned=True)
                for i, item in enumerate(part.items):
                    if self.length > WIDTH:
                        return
                    assert isinstance(item, Unit)
                    previous = part.items[i - 1] if i else None
                    gap_before = _min_gap(previous, item) if isinstance(previous, Unit) else 1
                    self.add_unit(item, gap_before, aligned=previous is not None)
                self.add(part.close, 1)
            elif k == 0:
                self.add(part, gap, aligned)
            else:
                assert self.before
                self.add(part, _gap(self.before, part), part.text in _ALIGNED)


def _flat(u: Unit, wide: bool = True) -> str:
    """Return a unit on one line, cut if it is longer than WIDTH.

    Args:
        wide: with the wider gaps of the source.
    """
    line = _Line(wide)
    line.add_unit(u, 0, aligned=False)
    return line.text


class Writer:
    """Writes units and comments to lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.line = _Line()
        self.wide = True  # whether new lines have the wider gaps of the source

    def text(self) -> str:
        """Return what has been written."""
        return "\n".join([*self.lines, self.line.text]).strip("\n") + "\n"

    def newline(self, indent: int) -> None:
        """End the line, unless it is empty, and begin another one."""
        if (text := self.line.text).strip():
            self.lines.append(text)
        self.line = _Line(self.wide)
        self.line.append_text(" " * indent)

    def add_aligned(self, t: Token, gap: int) -> None:
        """Append a token after the gap of the source if it is wider than `gap`, unless only the narrower line fits."""
        wide, narrow = self.line.copy(), self.line.copy()
        wide.add(t, gap, aligned=True)
        narrow.add(t, gap)
        self.line = narrow if narrow.length <= WIDTH < wide.length else wide

    def comment(self, t: Token, before: Token | None, indent: int) -> None:
        """Write a comment: beside the token before it if both are on one line of the source, else on a line of its own."""
        if before is not None and before.line == t.line and not before.is_comment:
            self.add_aligned(t, 2)
        else:
            self.newline(indent)
            self.line.append_text(t.text)
        self.line.before = t

    def items(self, items: list[Unit | Token], indent: int, opened: Token | None = None) -> None:
        """Write the units and comments of a block or of the file.

        Args:
            opened: the opening brace of the block; None for the file.
        """
        before = opened
        for k, item in enumerate(items):
            first = item.first if isinstance(item, Unit) else item
            previous = items[k - 1] if k else None
            if before is not None and k and first.line > before.line + 1:  # the source has an empty line here
                self.newline(0)
                self.lines.append("")
            if isinstance(item, Token):
                self.comment(item, before, indent)
                before = item
                continue
            neighbour = previous if isinstance(previous, Unit) and previous.last.line == first.line else None
            if neighbour is None or not self.beside(item, neighbour):
                self.newline(indent)
                self.unit(item, indent)
            before = item.last

    def beside(self, u: Unit, neighbour: Unit) -> bool:
        """Write a unit on the line of its neighbour, if it may be on one line and fits there; return whether it is written."""
        if not _one_line(u):
            return False
        line = self.line.copy()
        line.add_unit(u, _min_gap(neighbour, u), aligned=True)
        if line.length > WIDTH:
            return False
        self.line = line
        return True

    def unit(self, u: Unit, indent: int) -> None:
        """Write a unit at the beginning of a line: on this line if it may be on one line and fits, else part by part."""
        if _one_line(u):
            for wide in (True, False):
                if len(_flat(u, wide)) + indent <= WIDTH:
                    self.line.wide = wide
                    self.line.add_unit(u, 0, aligned=False)
                    self.line.wide = True
                    return
        pieces = list(_pieces(u))
        for k, piece in enumerate(pieces):
            if isinstance(piece, Block):
                self.block(piece, indent)
            else:
                self.tokens(piece, indent, k == 0)

    def tokens(self, tokens: list[Token], indent: int, first: bool) -> None:
        """Write the tokens of a unit up to its next block.

        They are on one line if they fit and have no comment, else they have the line breaks of the source. They are written
        without the wider gaps of the source if only so all lines fit.

        Args:
            first: they begin the unit.
        """
        count, start = len(self.lines), self.line
        for wide in (True, False, True):  # the last time if a line is too long even without the wider gaps
            del self.lines[count:]
            self.line = start.copy()
            self.wide = self.line.wide = wide
            self._tokens(tokens, indent, first)
            if all(len(text) <= WIDTH for text in (*self.lines[count:], self.line.text)):
                break
        self.wide = self.line.wide = True

    def _tokens(self, tokens: list[Token], indent: int, first: bool) -> None:
        line = self.line.copy()  # all tokens on one line, without the wider gaps of the source
        for k, t in enumerate(tokens):
            starts_unit = first and k == 0
            line.add(t, 0 if starts_unit or not line.before else _gap(line.before, t))
        keeps_breaks = line.length > WIDTH or any(t.is_comment for t in tokens)
        for k, t in enumerate(tokens):
            before = self.line.before
            if t.is_comment:
                self.comment(t, before, indent + INDENT)
            elif first and k == 0:
                self.line.add(t, 0)
            elif before is None or before.is_comment or (keeps_breaks and before.line < t.line):
                self.newline(indent + INDENT)
                self.line.add(t, 0)
            else:
                self.line.add(t, _gap(before, t), t.text in _ALIGNED)

    def block(self, b: Block, indent: int) -> None:
        """Write a block after the tokens before it."""
        before = self.line.before
        assert before is not None
        if before.is_comment:
            self.newline(indent + INDENT)
            self.line.add(b.open, 0)
        elif _one_line(Unit([b])):
            line = self.line.copy()
            line.add_unit(Unit([b]), 1, aligned=True)
            if line.length <= WIDTH:
                self.line = line
                return
            self.line.add(b.open, 1)
        else:
            self.add_aligned(b.open, 1)
        self.items(b.items, indent + INDENT, b.open)
        self.newline(indent)
        self.line.add(b.close, 0)


def _pieces(u: Unit) -> Iterator[list[Token] | Block]:
    """Yield the blocks of a unit and the tokens between them."""
    tokens: list[Token] = []
    for part in u.parts:
        if isinstance(part, Block):
            if tokens:
                yield tokens
            tokens = []
            yield part
        else:
            tokens.append(part)
    if tokens:
        yield tokens
