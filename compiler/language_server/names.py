"""Where the names of a text are defined, and where each definition holds.

Definitions are read from the tokens, without the parser: so they are known for a text with syntax errors too. A token is a
`Word` (text.py). Token k is the one with the number k in the text, from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chimerac.compiler.language_server.text import Text, Word
from chimerac.compiler.syntax.kinds import KINDS

STATEMENTS = frozenset(
    ("param", "require", "ranks", "stages", "pipe", "order", "size", "cost", "sync", "tied", "window", "limit", "let")
)
MAX_WORDS = 20_000  # a text with more words has no definitions here, so that no request takes longer than a second
MAX_SHOWN = 100  # words of a statement that are shown, at most
MAX_AHEAD = 300  # words among which the end of a statement, a clause or a rule is searched, at most
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Definition:
    """A name at the place that introduces it.

    Attributes:
        what: 'parameter', 'value', 'pipe', 'stage' and so on.
        start, end: the name itself.
        first, last: the offsets between which it holds.
        statement: the text that defines it.
    """

    name: str
    what: str
    start: int
    end: int
    first: int
    last: int
    statement: str


class Names:
    """The definitions of a text.

    Attributes:
        partner: the token that closes each opening bracket, as `_partners` returns it.
        found: all definitions, in text order.
    """

    def __init__(self, text: Text) -> None:
        self.text, self.words = text, text.words if len(text.words) <= MAX_WORDS else ()
        self.partner = _partners(self.words)
        self.found: list[Definition] = []
        self._by_name: dict[str, list[Definition]] = {}
        self._blocks: list[tuple[str, int]] = []  # the open blocks: the kind of each, and the token of its brace
        for k in range(len(self.words)):
            self._read(k)

    def of(self, name: str, offset: int) -> Definition | None:
        """Return the definition that a name at an offset means; None if it has none."""
        known = self._by_name.get(name, [])
        here = [d for d in known if d.first <= offset <= d.last]
        # Where no definition of the name holds, its use is an error, and the first definition is shown.
        return next(iter(here or known), None)

    def holding_at(self, offset: int) -> list[Definition]:
        """Return the definitions that hold at an offset, each name once, without the name of the schedule."""
        known = {d.name: d for d in self.found if d.first <= offset <= d.last and d.what != "schedule"}
        return list(known.values())

    def block_at(self, offset: int) -> str:
        """Return the kind of the innermost block around an offset: 'pipe', 'ticks', 'greedy', 'listing', or '' outside."""
        kind, smallest = "", len(self.text.text) + 1
        for k, close in self.partner.items():
            if self.words[k].text == "{" and self.words[k].end <= offset and offset <= self._start(close):
                size = self._start(close) - self.words[k].start
                if size < smallest:
                    kind, smallest = _kind_of_block(self.words, k), size
        return kind

    # --- reading ---------------------------------------------------------------------------------------------------

    def _word(self, k: int) -> str:
        """Return the text of token k; '' if there is no such token."""
        return self.words[k].text if 0 <= k < len(self.words) else ""

    def _ahead(self, k: int) -> range:
        """Return the numbers of the tokens from k on, at most MAX_AHEAD of them."""
        return range(k, min(k + MAX_AHEAD, len(self.words)))

    def _next(self, k: int, texts: tuple[str, ...]) -> int:
        """Return the next token with one of these texts, from token k on.

        Return one past the last token of the text if there is none within MAX_AHEAD.
        """
        return next((j for j in self._ahead(k) if self._word(j) in texts), len(self.words))

    def _start(self, k: int) -> int:
        """Return the offset of token k; the end of the text if k is past the last token."""
        return self.words[k].start if k < len(self.words) else len(self.text.text)

    def _add(self, k: int, what: str, first: int, last: int, statement: tuple[int, int]) -> None:
        """Add the name at token k, if the token is a name.

        Args:
            first, last: the offsets between which it holds.
            statement: the first token of its statement, and one past the last.
        """
        if self._word(k).isidentifier():
            word, (begin, stop) = self.words[k], statement
            last_shown = max(begin, min(stop, begin + MAX_SHOWN, len(self.words)) - 1)
            shown = " ".join(self.text.text[self._start(begin) : self.words[last_shown].end].split())
            definition = Definition(word.text, what, word.start, word.end, first, last, shown)
            self.found.append(definition)
            if what != "schedule":
                self._by_name.setdefault(word.text, []).append(definition)

    def _read(self, k: int) -> None:
        """Read the definitions of the statement, clause or rule that begins at token k, if one does."""
        word, before, after = self._word(k), self._word(k - 1), self._word(k + 1)
        text_end = len(self.text.text)  # an offset, as `block_end`; `stop` is a token: one past the last of the statement
        block_end = self._start(self.partner.get(self._blocks[-1][1], len(self.words))) if self._blocks else text_end
        block = self._blocks[-1][0] if self._blocks else ""
        match word:
            case "{":
                self._blocks.append((_kind_of_block(self.words, k), k))
            case "}" if self._blocks:
                self._blocks.pop()
            case "schedule":
                self._add(k + 1, "schedule", self._start(k + 1), self._start(k + 1), (k, k + 2))
            case "param":
                self._add(k + 1, "parameter", self._start(k), text_end, (k, self._statement_end(k)))
            case "let":
                self._add(k + 1, "value", self._start(k), block_end, (k, self._statement_end(k)))
            case "tied":
                self._add(k + 1, "tied set", 0, text_end, (k, self._statement_end(k)))
            case "pipe":
                brace = self._next(k, ("{", "}"))
                self._add(k + 1, "pipe", 0, text_end, (k, brace))
                if self._word(k + 2) == "[" and self._word(k + 4) == "in":
                    self._add(k + 3, "index of the pipes", self._start(k), self._close(brace), (k, brace))
            case "stage" if block == "pipe":
                stop = self._next(k + 1, ("stage", "micro_batches", "}", "order"))
                self._add(k + 1, "stage", self._start(k), self._start(stop), (k, stop))
            case "rank" if before == "for":
                self._add(k + 1, "rank", self._start(k), self._close(k + 2), (k - 3, k + 2))
            case "repeat" if self._word(k + 2) == "in":
                brace = self._next(k, ("{", "}"))
                self._add(k + 1, "number", self._start(brace), self._close(brace), (k, brace))
            case "fill" if after in KINDS and self._word(k + 2) == "(":
                stop = self._rule_end(k + 3)
                self._add(k + 3, "rank", self._start(k), self._start(stop), (k, stop))
                self._add(k + 5, "number", self._start(k), self._start(stop), (k, stop))
            case _ if word in KINDS and block == "ticks" and before != "fill" and self._begins_rule(k):
                self._rule(k)
            case _ if word in KINDS and after == "(" and self._word(k + 3) == ")" and self._word(k + 4) == "=":
                stop = self._cost_end(k + 4)
                self._add(k + 2, "stage", self._start(k), self._start(stop), (k, stop))

    def _rule(self, k: int) -> None:
        """Read the names of a rule of a ticks order: `F down[i](s, m = 2*g .. 2*g + 1) ...`."""
        stop = self._rule_end(k + 1)
        first, last, statement = self._start(k), self._start(stop), (k, stop)
        at = k + 1  # the pipe, if one is named; then its bracket, if it has an index; then the opening parenthesis
        if self._word(at) != "(":
            at += 1
            if self._word(at) == "[":
                if self._word(at + 2) == "]" and not self._is_known(at + 1):
                    self._add(at + 1, "index of the pipes", first, last, statement)
                at = self.partner.get(at, at) + 1
        self._add(at + 1, "stage", first, last, statement)
        self._add(at + 3, "micro-batch", first, last, statement)
        if self._word(at + 4) == "=":
            inside = range(at + 5, self.partner.get(at, at + 5))
            new = (j for j in inside if self._word(j).isidentifier() and self._word(j + 1) != "(" and not self._is_known(j))
            counter = next(new, None)  # the first name of the bounds that is not defined elsewhere
            if counter is not None:
                self._add(counter, "number of the group", first, last, statement)

    def _is_known(self, k: int) -> bool:
        """Return whether the name at token k has a definition that holds there; a token that is no name counts as known."""
        word = self.words[k]
        same = self._by_name.get(word.text, [])
        return not word.text.isidentifier() or any(d.first <= word.start <= d.last for d in same)

    def _begins_rule(self, k: int) -> bool:
        """Return whether the kind of task at token k begins a rule of a ticks order."""
        after = self._word(k + 1)
        return after == "(" or (after.isidentifier() and self._word(k + 2) in ("(", "["))

    def _rule_end(self, k: int) -> int:
        """Return one past the last token of the rule or fill of a ticks order.

        Args:
            k: a token of it after its kind of task.
        """
        for j in self._ahead(k):
            if self._word(j) in ("let", "fill", "}") or (self._word(j) in KINDS and self._begins_rule(j)):
                return j
        return min(k + MAX_AHEAD, len(self.words))

    def _cost_end(self, k: int) -> int:
        """Return one past the last token of the cost of one kind of task, from its '=' at token k on."""
        depth = 0
        for j in self._ahead(k):
            depth += (self._word(j) in _PAIRS) - (self._word(j) in _PAIRS.values())
            if depth < 0 or (depth == 0 and (self._word(j) in (",", "prefer") or self._word(j) in STATEMENTS)):
                return j
        return min(k + MAX_AHEAD, len(self.words))

    def _statement_end(self, k: int) -> int:
        """Return one past the last token of the statement that begins at token k. It ends at the latest with its first line."""
        line_end = self.text.text.find("\n", self.words[k].end)
        for j in self._ahead(k + 1):
            is_end = self._word(j) in STATEMENTS or self._word(j) in ("{", "}")
            if is_end or 0 <= line_end < self._start(j):
                return j
        return min(k + MAX_AHEAD, len(self.words))

    def _close(self, brace: int) -> int:
        """Return the offset at which the block ends that this brace opens.

        Args:
            brace: its token.
        """
        return self._start(self.partner.get(brace, len(self.words)))


def _partners(words: tuple[Word, ...]) -> dict[int, int]:
    """Return for every opening bracket the token that closes it; one past the last token if nothing does.

    If a bracket is not closed before one around it is, the bracket that closes the outer one closes both. A closing bracket for
    which no bracket of its kind is open closes all that are open.
    """
    open: list[int] = []
    closing: dict[int, int] = {}
    for k, w in enumerate(words):
        if w.text in _PAIRS:
            open.append(k)
        elif w.text in _PAIRS.values():
            while open and _PAIRS[words[open[-1]].text] != w.text:
                closing[open.pop()] = k
            if open:
                closing[open.pop()] = k
    return {**dict.fromkeys(open, len(words)), **closing}


def _kind_of_block(words: tuple[Word, ...], brace: int) -> str:
    """Return the kind of the block that a brace opens: 'pipe', 'ticks', 'greedy' or 'listing'; '' if it is none of them."""
    for w in _backwards(words, brace):
        if w.text in ("ticks", "greedy", "listing", "pipe"):
            return w.text
        if w.text in ("repeat", "if", "else"):
            return "listing"
        if w.text in ("{", "}"):
            break
    return ""


def _backwards(words: tuple[Word, ...], k: int) -> Iterator[Word]:
    return (words[j] for j in range(k - 1, -1, -1))
