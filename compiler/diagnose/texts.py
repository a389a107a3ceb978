"""The syntax errors of a text in one run, as many as can be told apart, with help (E101, E102).

An error with a known correction is corrected; otherwise the statement around it is blanked. Then the text is parsed again.
"""

from __future__ import annotations

import re
from dataclasses import replace

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span
from chimerac.compiler.diagnose.place import Place
from chimerac.compiler.diagnose.unexpected import SyntaxFinding, changed, explain
from chimerac.compiler.syntax.grammar import keywords
from chimerac.compiler.syntax.parse import ErrorPosition, count_tokens, syntax_error_of, terminal_texts, terminals_after

MAX_SYNTAX_ERRORS = 10  # fewer in a long text, which is parsed once more for each
MAX_TOKENS_TRIED = limits.TOKENS // 4  # tokens of all changed texts that are parsed to find help

# The terminals that are not in `Place.allowed`: names, numbers, operators except `not`, and the end of the text.
_WITHOUT_TEXT = frozenset(("NAME", "INT", "PLUS", "MINUS", "MULTIPLY", "COMPARE", "OR", "AND", "$END"))
# Where a statement, a rule of order ticks or a block may begin, or a block end.
_STARTS = re.compile(
    r"\b(?:schedule|param|require|let|ranks|stages|pipe|order|cost|size|limit|sync|tied|window)\b"
    r"|(?m:^[ \t]*[A-Z]\b(?=.*\bat\b))|[{}]"
)


def explain_text(source: Source) -> ChimeraError:
    """Return the syntax errors that can be told apart, at most MAX_SYNTAX_ERRORS. The text must have a syntax error."""
    tokens = count_tokens(source)
    max_errors = min(MAX_SYNTAX_ERRORS, max(1, limits.TOKENS // tokens))
    found: list[Diagnostic] = []
    draft, reader = _Draft(source), _Reader(MAX_TOKENS_TRIED // tokens)
    while (stop := syntax_error_of(draft.text)) is not None:
        place = _place(Source(source.name, draft.text), stop)
        if draft.blanked and (place.ended or place.text() in ("{", "}")):  # the blanked statement may be the cause
            break
        error = explain(place, stop.meaningless, reader)
        finding = draft.original(error.finding)
        if all(d.span != finding.span for d in found):
            found.append(finding)
        if len(found) >= max_errors or not draft.correct(place, error):
            break
    return ChimeraError(found)


class _Reader:
    """Parses texts to find their first syntax error.

    Args:
        left: how many more texts it may parse; later ones are not parsed.

    A call returns the position of the error, None if there is none, and 0 for a text that is not parsed.
    """

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, text: str) -> int | None:
        self.left -= 1
        if self.left < 0:
            return 0
        stop = syntax_error_of(text)
        return None if stop is None else stop.position


class _Draft:
    """A text whose errors are corrected or blanked one by one, so that the later ones are found.

    Args:
        source: the original text.

    Attributes:
        text: what it has become.
        last: the line and column of the last error that was blanked, or None.
        changes: of each correction the line, the column, and the lengths before and after it.
        blanked: whether a statement was blanked, which may cause other errors.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.text, self.blanked = source, source.text, False
        self.last: tuple[int, int] | None = None
        self.changes: list[tuple[int, int, int, int]] = []

    def correct(self, p: Place, error: SyntaxFinding) -> bool:
        """Correct or blank an error; return whether that was possible."""
        if error.change is not None:
            first, last = p.tokens[error.change.first], p.tokens[error.change.end - 1]
            self.changes.append((first.line, first.column, last.end - first.start, len(error.change.new)))
            self.text = changed(p, error.change)
            return True
        here = (p.tokens[p.at].line, p.tokens[p.at].column) if p.at < len(p.tokens) else None
        is_same_place = here is not None and here == self.last  # blanking did not help
        self.last, self.blanked = here, True
        self.text = "" if is_same_place else _without_statement_at(self.text, p)
        return bool(self.text)

    def original(self, d: Diagnostic) -> Diagnostic:
        """Return a finding about this text with its span in the original text."""
        assert d.span is not None
        s = d.span
        columns = [self._column(s.line, s.column), self._column(s.end_line, s.end_column)]
        span = Span(self.source, s.line, columns[0], s.end_line, max(columns[1], columns[0] + 1))
        return replace(d, span=span)

    def _column(self, line: int, column: int) -> int:
        """Return the column in the original text, of a place in the text as it is now."""
        for changed_line, at, before, after in reversed(self.changes):
            if line == changed_line and column >= at + after:
                column += before - after
        return column


def _place(source: Source, stop: ErrorPosition) -> Place:
    """Return the place of the first syntax error of a text."""
    texts = terminal_texts()

    def follow(end: int) -> tuple[frozenset[str], frozenset[str]]:
        """Return the terminals that may follow the text up to `end`, and the texts of those that are not in _WITHOUT_TEXT."""
        expected = terminals_after(source.text, end)
        return expected, frozenset(texts[t] for t in expected - _WITHOUT_TEXT if t in texts)

    return Place.of(source, stop.position, follow, keywords())


def _without_statement_at(text: str, p: Place) -> str:
    """Return the text with the statement around an error blanked, or '' if no single statement can be blanked."""
    if p.ended or p.terminals == {"SCHEDULE"}:
        return ""
    position = p.tokens[p.at].start
    code = re.sub(r"#[^\n]*", lambda m: " " * len(m[0]), text)
    starts = [m.start() for m in _STARTS.finditer(code)]
    if not starts:
        return ""
    # An error at the first word of a statement belongs to the statement before it, unless that one is complete.
    previous_is_complete = position in starts and p.allowed & {"}", "param"}
    begin = position if previous_is_complete else max((s for s in starts if s < position), default=0)
    end = min((s for s in starts if s >= max(position, begin + 1)), default=len(text))
    if code[begin] in "{}" or code.startswith(("schedule", "pipe", "order"), begin) or not code[begin:end].strip():
        return ""
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
