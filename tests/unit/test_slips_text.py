"""Slips in schedules that do not parse: the help has the edit that restores the intended program, or it explains what to write.

slips_corrected.txt has the slips whose help restores the program, one per line. slips_advised.txt has others, with their help.
"""

from __future__ import annotations

import random
import re

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, render
from chimerac.compiler import compile_text
from chimerac.compiler.diagnose import texts
from chimerac.compiler.diagnose.place import Place
from chimerac.compiler.pipeline import parse_source as parse
from chimerac.compiler.syntax.grammar import keywords
from chimerac.compiler.syntax.parse import terminal_texts, terminals_after
from tests.helpers_slips import RIGHT, findings_of, location, right_program, slip, slip_lines, with_edits, with_slip


@pytest.mark.parametrize("line", slip_lines("slips_corrected.txt"))
def test_the_help_restores_the_intended_program(line: str) -> None:
    base, text = with_slip(line)
    findings = findings_of(text)
    assert len(findings) == 1, [d.message for d in findings]  # one finding for one slip
    corrected = compile_text(with_edits(text, findings[0])).program
    assert corrected.with_header(schedule=right_program(base).header.schedule) == right_program(base)


ADVISED = slip_lines("slips_advised.txt")  # two lines for each slip: the slip, and `line: marked text => help`


@pytest.mark.parametrize(("line", "advice"), list(zip(ADVISED[::2], ADVISED[1::2], strict=True)))
def test_the_help_explains_what_to_write(line: str, advice: str) -> None:
    finding = findings_of(with_slip(line)[1])[0]
    where, _, help = advice.strip().partition(" => ")
    assert finding.code in ("E101", "E102")
    assert (location(finding).strip(), finding.help) == (where.strip(), help)


@pytest.mark.parametrize(
    ("line", "places"),
    [
        ("listing: repeat w { F } ==> repeat w { F, F }\\n    repeat w { F; F }", ["9: ,", "10: ;"]),
        ("gpipe: param D = 4 ==> param D: 4   ranks = D", ["2: :", "2: ="]),
        ("gpipe: F(s, m) at s + m ==> F(s, m) = s + m mod 3", ["8: =", "8: 3"]),
    ],
)
def test_several_slips_are_all_found(line: str, places: list[str]) -> None:
    """One slip does not hide the next, and each is marked at its place in the text."""
    assert [location(d) for d in findings_of(with_slip(line)[1])] == places


def test_a_block_that_is_open_is_named_with_its_beginning() -> None:
    for base, right, wrong, where, block in (
        ("listing", "{ B  F }", "{ B  F", 10, "repeat N - w {"),
        ("listing", "    repeat w { B }\n}", "    if r >= 0 {\n        repeat w { B }\n}", 12, "if r >= 0 {"),
        ("gpipe", "(N - 1 - m)\n}", "(N - 1 - m)", 9, "order ticks {"),
        ("gpipe", "micro_batches N }", "micro_batches N", 6, "pipe main {"),
        ("greedy", "r\n}", "r", 11, "order greedy {"),
        ("vee", "    micro_batches N\n}", "    micro_batches N", 9, "pipe main {"),
        ("chimera", "1 - s\n}", "1 - s", 12, "order ticks {"),
    ):
        text = slip(base, (right, wrong))
        [found] = findings_of(text)
        assert found.span is not None and found.span.line == where, text
        assert found.message == f"a '}}' is missing: '{block}' is not closed"
        beginning = next(k for k, line in enumerate(text.split("\n"), 1) if block in line)
        assert found.notes[0].startswith(f"'{block}' begins at slip.sched:{beginning}:")
        assert found.help == f"write '}}' at the end of line {where}" and compile_text(with_edits(text, found))


def test_no_word_to_write_is_suggested_if_no_change_lets_the_parser_continue() -> None:
    for text in ("schedule x what { is } nothing", slip("gpipe", ("at s + m", "at ? s ! + m"))):
        assert "write '" not in findings_of(text)[0].help


# Words that are inserted or replace others, besides the keywords of the language.
SIGNS = [*"{}()[],;:.=<>+-*/%&|!?@~", "..", "==", "&&", "//", "mod", "elif", "for", "while", "range", "F", "B", "s", "m", "4"]


def test_no_random_change_of_a_text_makes_the_help_fail() -> None:
    """Words are left out, inserted, replaced or exchanged, and texts are cut off."""
    r = random.Random(7)
    inserted_words = sorted(keywords()) + SIGNS
    for _ in range(400):
        words = re.findall(r"\w+|[^\w\s]|\s+", RIGHT[r.choice(list(RIGHT))])
        for _ in range(r.choice([1, 1, 2, 5])):
            k, other = r.randrange(len(words)), r.randrange(len(words))
            match r.randrange(5):
                case 0:
                    words[k] = ""
                case 1:
                    words.insert(k, r.choice(inserted_words))
                case 2:
                    words[k] = r.choice(inserted_words)
                case 3:
                    words[k], words[other] = words[other], words[k]
                case 4:
                    words = words[: max(k, 1)]
        try:
            parse(Source("slip.sched", "".join(words)))
        except ChimeraError as error:
            assert all(d.span is not None for d in error.diagnostics)
            assert render(error.diagnostics)


LISTING = "schedule x\nranks 1\nstages 1\npipe a { stage s on rank s   micro_batches 1 }\norder listing for rank r {\n"


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000])
@pytest.mark.parametrize(
    "text", ["schedule x\npipe a[#] {", f"{LISTING}for i in range(#) {{ F }}\n}}", f"{LISTING}for i in 0 until # {{ F }}\n}}"]
)
def test_other_digits_and_a_huge_number_are_findings(text: str, number: str) -> None:
    findings = findings_of(text.replace("#", number))
    assert findings and not any(".. 2'" in d.help for d in findings)  # ٣, if it were read as 3, would give 0 .. 2


def test_the_arguments_of_range_are_separated_by_the_comma_outside_of_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []  # of closing_bracket: their number does not grow with that of the commas
    closing_bracket = Place.closing_bracket
    monkeypatch.setattr(Place, "closing_bracket", lambda p, k: calls.append(k) or closing_bracket(p, k))
    for commas in (1, 100):
        calls.clear()
        (found,) = findings_of(f"{LISTING}for i in range(max({'1, ' * commas}2), 5) {{ F }}\n}}")
        assert f"repeat i in max({'1, ' * commas}2) .. 4" in found.help and len(calls) < 50


@pytest.mark.parametrize("statement", ["size (1/2)", "limit activations 1 4", "window + )", "cost F 1 )", "sync )"])
def test_errors_after_a_wrong_statement_are_found_too(statement: str) -> None:
    text = f"""schedule x
ranks 2
stages 2
pipe a {{ stage s on rank s   micro_batches 2 }}
{statement}
order ticks {{ F(s, m) at s + ) }}
"""
    assert [location(d).split(":")[0] for d in findings_of(text)] == ["5", "6"]


def test_a_wrong_statement_ends_before_the_first_word_of_the_next_one() -> None:
    """`_STARTS` has all words that may begin a statement, as the parser knows them."""
    names = terminals_after("schedule x", len("schedule x")) - {"$END"}
    assert names and all(texts._STARTS.fullmatch(terminal_texts()[name]) for name in names)
