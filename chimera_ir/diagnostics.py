"""Findings: one type for all errors in inputs, one exception that carries all findings of a pass, one renderer.

error[E210]: this does not hold: N >= 1 and N % D == 0
  --> schedules/chimera.sched:16:22
   |
16 | param N = D          require N >= 1 and N % D == 0
   |                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ N = 6, D = 4
   = note: N was given: -p N=6
   = help: give -p N=4 or -p N=8
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Source:
    """A text that findings can point into.

    Attributes:
        name: its name in messages, usually a path.
    """

    name: str
    text: str = field(repr=False)

    def line(self, number: int) -> str:
        """Return line `number` (from 1) without its newline, or an empty string if the text has no such line."""
        return self.lines(number, number)[0] if number > 0 else ""

    def lines(self, first: int, last: int) -> list[str]:
        """Return the lines `first` .. `last` (from 1) without their newlines, with empty strings past the end."""
        start = 0
        for _ in range(first - 1):
            start = self.text.find("\n", start) + 1
            if not start:
                return [""] * (last - first + 1)
        lines = []
        for _ in range(first, last + 1):
            end = self.text.find("\n", start)
            lines.append(self.text[start : end if end >= 0 else None].rstrip("\r"))
            start = end + 1 if end >= 0 else len(self.text)
        return lines

    def span(self, start: int, end: int) -> Span:
        """Return the span of the characters start .. end - 1, which are on one line."""
        line, column = self.text.count("\n", 0, start) + 1, start - self.text.rfind("\n", 0, start)
        return Span(self, line, column, line, column + end - start)


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a source.

    Attributes:
        line, column: of its first character, from 1.
        end_line, end_column: just after its last one.
    """

    source: Source
    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, other: Span) -> Span:
        """Return the span from here to the end of `other`."""
        return replace(self, end_line=other.end_line, end_column=other.end_column)

    @property
    def text(self) -> str:
        """Return the text of the span; several lines are joined by spaces, without their comments."""
        lines = self.source.lines(self.line, self.end_line)
        lines[-1] = lines[-1][: self.end_column - 1]
        lines[0] = lines[0][self.column - 1 :]
        if len(lines) == 1:
            return lines[0]
        return " ".join(part for line in lines if (part := line.partition("#")[0].strip()))

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding.

    Attributes:
        message: the fact, with its numbers.
        span: the place in the text.
        label: the text below this place.
        notes: further facts, such as causes.
        help: one change to make.
        about: the rows of a program, the limit of a header, or the path to a value in a file that the finding is about. A
            caller that knows the text behind `about` adds a span or notes.
    """

    code: str
    message: str
    span: Span | None = None
    label: str = ""
    notes: tuple[str, ...] = ()
    help: str = ""
    about: tuple[int | str, ...] = ()


class ChimeraError(Exception):
    """All findings of one pass.

    Args:
        diagnostics: at least one.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic]):
        self.diagnostics = tuple(diagnostics)
        assert self.diagnostics, "an error without a finding"
        super().__init__(self.diagnostics)

    def __str__(self) -> str:
        """Return the findings as text, for a traceback in the user's own program."""
        shown = _rendered(self.diagnostics, colour=False)
        # The name of this class precedes the text, so "error[E210]: ..." becomes "E210: ...".
        return "\n".join(text.removeprefix("error[").replace("]", "", 1).rstrip() for text in shown)


def refuse(
    code: str, message: str, span: Span | None = None, label: str = "", notes: tuple[str, ...] = (), help: str = ""
) -> ChimeraError:
    """Return the error that carries this single finding, ready to raise."""
    return ChimeraError([Diagnostic(code, message, span, label, notes, help)])


MAX_LENGTH = 1000  # the most characters that are shown of a line, before escapes; for a longer word no similar one is searched
MAX_KNOWN = 500  # known words, at most, among which a similar one is searched for


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a help that names the most similar known word, or the first 20 if none is similar; '' if none is known."""
    names = sorted(set(known))
    same = [name for name in names if name.casefold() == word.casefold()]
    near = same or (difflib.get_close_matches(word, names[:MAX_KNOWN], n=1, cutoff=0.6) if len(word) <= MAX_LENGTH else [])
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(names[:20])}" if names else ""


MAX_WIDTH = 160  # characters of a source line shown
MAX_SHOWN = 20  # findings that are printed; the others are only counted


def render(diagnostics: Sequence[Diagnostic], colour: bool = False) -> str:
    """Return the findings as text.

    Args:
        colour: with ANSI escapes.
    """
    return "\n".join(_rendered(diagnostics, colour))


def visible(text: str) -> str:
    """Return a line that is safe to print, shortened if it is very long.

    Characters that are not printable are escaped, as in \\x1b, except tabs. The escaped ones include those that the terminal
    would interpret (controls, changes of the writing direction), and those that UTF-8 cannot express.
    """
    text = text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 3]}..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def _rendered(diagnostics: Sequence[Diagnostic], colour: bool) -> list[str]:
    """Return the text of each finding that is shown, and a last text that counts the others, if there are any."""
    shown = [_render_one(d, colour) for d in diagnostics[:MAX_SHOWN]]
    if len(diagnostics) > MAX_SHOWN:
        shown.append(f"... and {len(diagnostics) - MAX_SHOWN} more findings\n")
    return shown


def _render_one(finding: Diagnostic, colour: bool) -> str:
    red, blue, bold, off = ("\x1b[31;1m", "\x1b[34;1m", "\x1b[1m", "\x1b[0m") if colour else ("", "", "", "")
    lines = [f"{red}error[{finding.code}]{off}{bold}: {visible(finding.message)}{off}"]
    margin = ""
    if finding.span is not None:
        text = finding.span.source.line(finding.span.line)
        number = str(finding.span.line)
        margin = " " * len(number)
        end = finding.span.end_column if finding.span.end_line == finding.span.line else len(text) + 1
        # A line too long to read is cut around its caret.
        first = max(0, finding.span.column - 1 - MAX_WIDTH // 2) if len(text) > MAX_WIDTH else 0
        column, end, text = finding.span.column - first, end - first, text[first : first + MAX_WIDTH]
        end = max(column, min(end, len(text) + 1))
        before, marked, after = visible(text[: column - 1]), visible(text[column - 1 : end - 1]), visible(text[end - 1 :])
        # Tabs are kept, so that the caret is below its word at any tab width.
        indent = "".join("\t" if c == "\t" else " " for c in before)
        lines += [
            f"{blue}{margin}-->{off} {visible(str(finding.span))}",
            f"{blue}{margin} |{off}",
            f"{blue}{number} |{off} {before}{marked}{after}".rstrip(),
            f"{blue}{margin} |{off} {indent}{red}{'^' * max(1, len(marked))} {visible(finding.label)}{off}".rstrip(),
        ]
    # A note of several lines (a drawing, a cycle) keeps its own indentation under the first line.
    for kind, remark in [("note", n) for n in finding.notes] + ([("help", finding.help)] if finding.help else []):
        beginning, *rest = map(visible, remark.split("\n"))
        lines.append(f"{blue}{margin} ={off} {bold}{kind}{off}: {beginning}")
        lines += [f"{margin}   {line}" for line in rest]
    return "\n".join(lines) + "\n"
