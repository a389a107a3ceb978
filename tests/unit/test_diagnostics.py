"""Findings: how they are rendered, the exception that carries them, help that names the nearest word, and spans."""

from __future__ import annotations

import pickle

from chimerac.chimera_ir.diagnostics import (
    MAX_SHOWN,
    MAX_WIDTH,
    ChimeraError,
    Diagnostic,
    Source,
    Span,
    did_you_mean,
    refuse,
    render,
)
from tests.helpers import without_colour

TEXT = "first line\n\tlet x =\tN // 0 # tabs\nlast line without end"


def span_at(line: int, column: int, end_column: int, end_line: int | None = None, text: str = TEXT) -> Span:
    return Span(Source("a.sched", text), line, column, end_line or line, end_column)


def rendered_lines(span: Span | None, label: str = "here", **more: object) -> list[str]:
    return render([Diagnostic("E123", "a fact", span, label, **more)]).splitlines()


def test_a_finding_has_its_code_place_line_caret_notes_and_help() -> None:
    found = rendered_lines(span_at(1, 7, 11), notes=("how it came about", "another\n    drawing"), help="one change")
    assert found == [
        "error[E123]: a fact",
        " --> a.sched:1:7",
        "  |",
        "1 | first line",
        "  |       ^^^^ here",
        "  = note: how it came about",
        "  = note: another",
        "        drawing",
        "  = help: one change",
    ]


def test_tabs_are_kept_so_that_the_caret_is_under_its_word() -> None:
    found = rendered_lines(span_at(2, 10, 16))
    assert found[3] == "2 | \tlet x =\tN // 0 # tabs"
    assert found[4] == "  | \t       \t^^^^^^ here"


def test_a_long_line_is_cut_around_its_caret() -> None:
    text = "x" * 1000 + "WRONG" + "y" * 1000
    found = rendered_lines(span_at(1, 1001, 1006, text=text), label="")
    line, caret = found[3].removeprefix("1 | "), found[4].removeprefix("  | ")
    assert len(line) == MAX_WIDTH
    assert line[caret.index("^") : caret.rindex("^") + 1] == "WRONG"
    assert caret.count("^") == 5
    # A line just short enough is shown whole.
    whole = "z" * (MAX_WIDTH - 1) + "W"
    assert rendered_lines(span_at(1, MAX_WIDTH, MAX_WIDTH + 1, text=whole))[3] == f"1 | {whole}"


def test_a_span_of_several_lines_marks_the_rest_of_its_first_line() -> None:
    found = rendered_lines(span_at(1, 7, 5, end_line=3))
    assert found[4] == "  |       ^^^^ here"


def test_a_place_just_past_the_end_has_one_caret() -> None:
    found = rendered_lines(span_at(3, 22, 23))
    assert found[3:5] == ["3 | last line without end", "  |                      ^ here"]
    assert rendered_lines(span_at(9, 1, 2))[3:5] == ["9 |", "  | ^ here"]  # a line that does not exist


def test_carriage_returns_are_not_shown() -> None:
    assert rendered_lines(span_at(1, 1, 4, text="abc\r\ndef\r\n"))[3] == "1 | abc"


def test_the_margin_has_the_width_of_the_line_number() -> None:
    found = rendered_lines(span_at(10, 1, 2, text="\n" * 9 + "x"))
    assert found[1:5] == ["  --> a.sched:10:1", "   |", "10 | x", "   | ^ here"]


def test_a_finding_without_a_place_shows_no_line_of_a_source() -> None:
    assert rendered_lines(None, notes=("n",), help="h") == ["error[E123]: a fact", " = note: n", " = help: h"]


def test_findings_after_the_first_ones_are_only_counted() -> None:
    text = render([Diagnostic("E123", f"fact {k}") for k in range(MAX_SHOWN + 7)])
    assert text.count("error[E123]") == MAX_SHOWN
    assert text.endswith("... and 7 more findings\n")
    assert "more findings" not in render([Diagnostic("E123", "fact")] * MAX_SHOWN)


def test_colour_changes_no_text_of_a_finding() -> None:
    d = Diagnostic("E123", "a fact", span_at(2, 10, 16), "label", ("note",), "help")
    coloured = render([d], colour=True)
    assert "\x1b[31;1m" in coloured
    assert without_colour(coloured) == render([d])


def test_a_span_to_another_one_covers_both() -> None:
    a, b = span_at(1, 7, 11), span_at(2, 10, 16)
    assert a.to(b) == span_at(1, 7, 16, end_line=2)
    assert str(a.to(b)) == "a.sched:1:7"


def test_the_exception_carries_its_findings_and_shows_them_as_text() -> None:
    error = ChimeraError([Diagnostic("E1", "one"), Diagnostic("E2", "two")])
    assert str(error) == "E1: one\nE2: two"
    assert str(refuse("E3", "a[0] is wrong", notes=("n",), help="h")) == "E3: a[0] is wrong\n = note: n\n = help: h"
    assert refuse("E3", "three", help="h").diagnostics == (Diagnostic("E3", "three", help="h"),)
    many = ChimeraError([Diagnostic("E123", "a fact")] * (MAX_SHOWN + 7))
    assert str(many).endswith("E123: a fact\n... and 7 more findings")


def test_the_exception_can_be_pickled() -> None:
    for error in (ChimeraError([Diagnostic("E1", "one", span_at(1, 7, 11)), Diagnostic("E2", "two")]), refuse("E3", "three")):
        received = pickle.loads(pickle.dumps(error))
        assert type(received) is ChimeraError and received.diagnostics == error.diagnostics and str(received) == str(error)


def test_the_repr_of_an_error_does_not_contain_the_text_of_its_source() -> None:
    assert "secret" not in repr(refuse("E1", "one", Source("a.sched", "secret\n").span(0, 1)))


def test_help_names_the_nearest_word_or_lists_known_ones() -> None:
    assert did_you_mean("chimara", ["gpipe", "chimera"]) == "did you mean 'chimera'?"
    assert did_you_mean("zzz", ["b", "a"]) == "known: a, b"
    assert did_you_mean("zzz", []) == ""


def test_the_text_of_a_span_over_several_lines_has_no_comments() -> None:
    source = Source("a.sched", "let x = 1 # one\n  # two\n  + 2   # three\n")
    assert Span(source, 1, 9, 3, 6).text == "1 + 2"
    assert Span(source, 1, 9, 1, 10).text == "1"


def test_lines_that_a_source_does_not_have_are_empty() -> None:
    source = Source("a.sched", "let x = 1 # one\n  # two\n  + 2   # three\n")
    assert source.lines(2, 5) == ["  # two", "  + 2   # three", "", ""] and source.line(9) == source.line(0) == ""
