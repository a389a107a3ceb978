"""Where the names of a text are defined, and where each definition holds.

Definitions are read from the tokens, without the parser: so they are known for a text with syntax errors too.
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
MAX_SHOWN = 100  # words of a statement that are shown
MAX_AHEAD = 300  # words in which the end of a statement is looked for
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Definition:
    """A name at the place that introduces it. what: 'parameter', 'value', 'pipe', 'stage' and so on.

    start, end: the name itself; first, last: the offsets between which it holds; statement: the text that defines it.
    """

    name: str
    what: str
    start: int
    end: int
    first: int
    last: int
    statement: str


class Names:
    """The definitions of a text."""

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
        return next(iter(here or known), None)  # where no definition holds, the use is an error, and any one is shown

    def holding_at(self, offset: int) -> list[Definition]:
        """Return the definitions that hold at an offset, each name once."""
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
        return range(k, min(k + MAX_AHEAD, len(self.words)))

    def _next(self, k: int, texts: tuple[str, ...]) -> int:
        """Return the next token with one of these texts, from token k on; one past the last token if there is none near."""
        return next((j for j in self._ahead(k) if self._word(j) in texts), len(self.words))

    def _start(self, k: int) -> int:
        """Return the offset of token k; the end of the text if k is past the last token."""
        return self.words[k].start if k < len(self.words) else len(self.text.text)

    def _add(self, k: int, what: str, first: int, last: int, statement: tuple[int, int]) -> None:
        """Add the name at token k. first, last: offsets; statement: its first token and one past its last token."""
        if self._word(k).isidentifier():
            w, (begin, end) = self.words[k], statement
            last_shown = max(begin, min(end, begin + MAX_SHOWN, len(self.words)) - 1)
            shown = " ".join(self.text.text[self._start(begin) : self.words[last_shown].end].split())
            found = Definition(w.text, what, w.start, w.end, first, last, shown)
            self.found.append(found)
            if what != "schedule":
                self._by_name.setdefault(w.text, []).append(found)

    def _read(self, k: int) -> None:
        """Read the definitions that begin at token k."""
        word, before, after = self._word(k), self._word(k - 1), self._word(k + 1)
        end = len(self.text.text)
        block_end = self._start(self.partner.get(self._blocks[-1][1], len(self.words))) if self._blocks else end
        kind = self._blocks[-1][0] if self._blocks else ""
        match word:
            case "{":
                self._blocks.append((_kind_of_block(self.words, k), k))
            case "}" if self._blocks:
                self._blocks.pop()
            case "schedule":
                self._add(k + 1, "schedule", self._start(k + 1), self._start(k + 1), (k, k + 2))
            case "param":
                self._add(k + 1, "parameter", self._start(k), end, (k, self._statement_end(k)))
            case "let":
                self._add(k + 1, "value", self._start(k), block_end, (k, self._statement_end(k)))
            case "tied":
                self._add(k + 1, "tied set", 0, end, (k, self._statement_end(k)))
            case "pipe":
                brace = self._next(k, ("{", "}"))
                self._add(k + 1, "pipe", 0, end, (k, brace))
                if self._word(k + 2) == "[" and self._word(k + 4) == "in":
                    self._add(k + 3, "index of the pipes", self._start(k), self._close(brace), (k, brace))
            case "stage" if kind == "pipe":
                last = self._next(k + 1, ("stage", "micro_batches", "}", "order"))
                self._add(k + 1, "stage", self._start(k), self._start(last), (k, last))
            case "rank" if before == "for":
                self._add(k + 1, "rank", self._start(k), self._close(k + 2), (k - 3, k + 2))
            case "repeat" if self._word(k + 2) == "in":
                brace = self._next(k, ("{", "}"))
                self._add(k + 1, "number", self._start(brace), self._close(brace), (k, brace))
            case "fill" if after in KINDS and self._word(k + 2) == "(":
                last = self._rule_end(k + 3)
                self._add(k + 3, "rank", self._start(k), self._start(last), (k, last))
                self._add(k + 5, "number", self._start(k), self._start(last), (k, last))
            case _ if word in KINDS and kind == "ticks" and before != "fill" and self._begins_rule(k):
                self._rule(k)
            case _ if word in KINDS and after == "(" and self._word(k + 3) == ")" and self._word(k + 4) == "=":
                last = self._cost_end(k + 4)
                self._add(k + 2, "stage", self._start(k), self._start(last), (k, last))

    def _rule(self, k: int) -> None:
        """Read the names of a rule of a ticks order: `F down[i](s, m = 2*g .. 2*g + 1) ...`."""
        last = self._rule_end(k + 1)
        first, statement, at = self._start(k), (k, last), k + 1
        if self._word(at) != "(":
            at += 1
            if self._word(at) == "[":
                if self._word(at + 2) == "]" and not self._is_known(at + 1):
                    self._add(at + 1, "index of the pipes", first, self._start(last), statement)
                at = self.partner.get(at, at) + 1
        self._add(at + 1, "stage", first, self._start(last), statement)
        self._add(at + 3, "micro-batch", first, self._start(last), statement)
        if self._word(at + 4) == "=":
            inside = range(at + 5, self.partner.get(at, at + 5))
            new = (j for j in inside if self._word(j).isidentifier() and self._word(j + 1) != "(" and not self._is_known(j))
            for j in new:
                self._add(j, "number of the group", first, self._start(last), statement)
                break

    def _is_known(self, k: int) -> bool:
        """Return whether a definition of the name at token k holds there; a token that is no name counts as known."""
        word = self.words[k]
        same = self._by_name.get(word.text, [])
        return not word.text.isidentifier() or any(d.first <= word.start <= d.last for d in same)

    def _begins_rule(self, k: int) -> bool:
        """Return whether the kind of task at token k begins a rule of a ticks order."""
        after = self._word(k + 1)
        return after == "(" or (after.isidentifier() and self._word(k + 2) in ("(", "["))

    def _rule_end(self, k: int) -> int:
        """Return one past the last token of the rule of a ticks order in which token k is."""
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
        """Return one past the last token of the statement that begins at token k; it ends with its line at the latest."""
        line = self.text.text.find("\n", self.words[k].end)
        for j in self._ahead(k + 1):
            starts = self._word(j) in STATEMENTS or self._word(j) in ("{", "}")
            if starts or 0 <= line < self._start(j):
                return j
        return min(k + MAX_AHEAD, len(self.words))

    def _close(self, brace: int) -> int:
        """Return the offset at which the block of the brace at this token ends."""
        return self._start(self.partner.get(brace, len(self.words)))


def _partners(words: tuple[Word, ...]) -> dict[int, int]:
    """Return for every opening bracket the token that closes it; one past the last token if nothing does."""
    open: list[int] = []
    found: dict[int, int] = {}
    for k, w in enumerate(words):
        if w.text in _PAIRS:
            open.append(k)
        elif w.text in _PAIRS.values():
            while open and _PAIRS[words[open[-1]].text] != w.text:
                found[open.pop()] = k
            if open:
                found[open.pop()] = k
    return {**dict.fromkeys(open, len(words)), **found}


def _kind_of_block(words: tuple[Word, ...], brace: int) -> str:
    """Return the kind of the block that a brace opens."""
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
