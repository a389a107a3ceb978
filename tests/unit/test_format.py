"""chimerac fmt: its layout, which keeps the syntax tree and all comments, and the command with its exit statuses."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from chimerac.chimera_ir.diagnostics import Source
from chimerac.compiler.command.main import main
from chimerac.compiler.format import format_schedule
from chimerac.compiler.format.layout import WIDTH
from chimerac.compiler.library import find, names
from chimerac.compiler.pipeline import parse_source as parse
from chimerac.compiler.syntax.grammar import parser
from chimerac.compiler.syntax.printer import print_schedule
from chimerac.compiler.syntax.tokens import TOKEN
from tests.effort import examples
from tests.helpers import findings_of_call
from tests.helpers_random import trees


def formatted(text: str) -> str:
    return format_schedule(Source("x.sched", text))


def comments(text: str) -> list[str]:
    """Return the comments of a text, without the white space at their ends."""
    return re.findall(r"#[^\n]*(?<!\s)", text)


def formatted_listing(body: str) -> str:
    """Return the formatted text between the braces of a listing."""
    text = formatted(f"schedule x\norder listing for rank r {{\n{body}\n}}\n")
    return text.removeprefix("schedule x\norder listing for rank r {\n").removesuffix("}\n")


@pytest.mark.parametrize("name", names())
def test_the_library_is_formatted(name: str) -> None:
    text = find(name).text
    assert formatted(text) == text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("let a=2 * m+s", "let a = 2*m + s"),
        ("let a = D//2", "let a = D // 2"),
        ("let a = D // 2 - 1 - i*D // f", "let a = D//2 - 1 - i*D//f"),
        ("let a = (D//2)%f==0 and not(b)", "let a = (D // 2) % f == 0 and not (b)"),
        ("let a = - b - - c * -2", "let a = -b - -c*-2"),
        ("let a = if b<1then-1 else min( a,b )", "let a = if b < 1 then -1 else min(a, b)"),
        ("cost F( s )=1 ,hop=0", "cost F(s) = 1, hop = 0"),
        ("size 1 / 2", "size 1/2"),
        ("pipe p [i in 0..f - 1]{stage s on rank s micro_batches N}",
         "pipe p[i in 0 .. f-1] { stage s on rank s   micro_batches N }"),
        ("let a = 1 let b = 2", "let a = 1   let b = 2"),
        ("let a = 1      let b = 2", "let a = 1      let b = 2"),  # a gap that aligns columns
        ("let a=1      let b = 2", "let a = 1    let b = 2"),  # the second statement keeps its column
        ("let a = 1      # why", "let a = 1      # why"),
        ("let a = 1 # why", "let a = 1  # why"),
        ("let\n a\n =\n 1", "let a = 1"),
        ("order ticks { F(s, m) at s }", "order ticks { F(s, m) at s }"),
        ("order ticks { F(s, m) at s\n}", "order ticks {\n    F(s, m) at s\n}"),
        ("order ticks {\n\n F(s, m) at s\n\n\n B(s, m) at s\n\n}", "order ticks {\n    F(s, m) at s\n\n    B(s, m) at s\n}"),
        ("order greedy {prefer B,F then smaller if s<m then s else m}",
         "order greedy { prefer B, F   then smaller if s < m then s else m }"),
        ("order ticks { # why\n# and why\n}", "order ticks {  # why\n    # and why\n}"),
    ],
)  # fmt: skip
def test_the_layout_of_statements(given: str, expected: str) -> None:
    assert formatted(f"schedule x\n{given}") == f"schedule x\n{expected}\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("F main ( 0,1..2 )&B F W", "    F main(0, 1 .. 2) & B  F  W\n"),
        ("if r<1{F}\nelse\n{B}", "    if r < 1 { F } else { B }\n"),
        ("if r<1{F\n}else{B}", "    if r < 1 {\n        F\n    } else { B }\n"),
        ("repeat k  { F }\nrepeat i in 0..N//2-1 { W }", "    repeat k  { F }\n    repeat i in 0 .. N//2 - 1 { W }\n"),
        ("if r<1{F}  else  if r<2\n{B} else{F}", "    if r < 1 { F } else if r < 2 { B } else { F }\n"),
        ("if r<1{F}  else { if r<2{B} }", "    if r < 1 { F } else { if r < 2 { B } }\n"),
        ("if r<1{F\n}  else  if r<2{B}", "    if r < 1 {\n        F\n    } else if r < 2 { B }\n"),
        ("F p[ 1-a ] let x = 1", "    F p[1-a]   let x = 1\n"),
    ],
)
def test_the_layout_of_actions(given: str, expected: str) -> None:
    assert formatted_listing(given) == expected


def test_a_part_that_does_not_fit_begins_a_new_line() -> None:
    long = "let a = " + " + ".join(["long_name"] * 8)
    assert formatted(f"schedule x {long} {long.replace('a =', 'b =')}").count("\n") == 2
    listing = formatted_listing(" ".join(["F main(0)"] * 30))
    assert max(map(len, listing.splitlines())) <= WIDTH and len(listing.splitlines()) > 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("order ticks GAP{\nF(s, m) at s\n}", "order ticks {\n    F(s, m) at s\n}"),
        ("ranks D GAP# why", "ranks D  # why"),
        ("let aGAP=\n1", "let a = 1"),
        ("order ticks {\nF(s, m) GAPat s # why\n    + m\n}", "order ticks {\n    F(s, m) at s  # why\n        + m\n}"),
    ],
    ids=["block", "comment", "statement", "rule with a comment"],
)
def test_a_gap_that_makes_a_line_too_long_is_given_up(given: str, expected: str) -> None:
    assert formatted("schedule x\n" + given.replace("GAP", " " * WIDTH)) == f"schedule x\n{expected}\n"


def test_a_gap_stays_if_the_line_is_too_long_without_it_too() -> None:
    text = f"param b = 2        # {'why ' * 29}why"
    assert formatted(f"schedule x\n{text}") == f"schedule x\n{text}\n"


def test_a_comment_may_follow_any_token() -> None:
    text = "".join(f"{token} # {k}\n" for k, token in enumerate(TOKEN.findall(find("dualpipe").text)) if token[0] != "#")
    assert comments(formatted(text)) == comments(text)
    assert formatted(formatted(text)) == formatted(text)


GAPS = ["", " ", " ", " ", "   ", "         ", " " * WIDTH, "\n", "\n\n\n", "\t", " # a, { \n", "\n# b\n\n"]


@st.composite
def with_another_layout(draw: DrawFn, text: str) -> str:
    """Draw the text with other spaces, line breaks and comments between its tokens."""
    result = ""
    for token in TOKEN.findall(text):
        gap = draw(st.sampled_from(GAPS)) if token[0] != "#" else "\n"
        if not gap and re.search(r"\w$", result) and (token[0].isalnum() or token[0] == "_"):  # they might become one token
            gap = " "
        result += gap + token + ("\n" if token[0] == "#" else "")
    return result


def check(text: str) -> None:
    """Check that formatting keeps the syntax tree and the comments, and that formatting the result changes nothing.

    The result has no white space at the end of a line, no two empty lines in a row, and no tab.
    """
    once = formatted(text)
    assert parse(Source("x", once)) == parse(Source("x", text))
    assert comments(once) == comments(text)
    assert formatted(once) == once
    assert not re.search(r"[ \t]$|\n\n\n|\t", once, re.MULTILINE)


@given(data=st.data())
@examples(40)
def test_any_tree_and_its_comments_are_kept(data: st.DataObject) -> None:
    check(data.draw(with_another_layout(print_schedule(data.draw(trees)))))


@given(data=st.data(), name=st.sampled_from(names()))
@examples(50)
def test_the_library_in_any_layout_is_kept(data: st.DataObject, name: str) -> None:
    check(data.draw(with_another_layout(find(name).text)))


def test_a_schedule_that_does_not_parse_is_a_finding() -> None:
    assert [d.code for d in findings_of_call(formatted, "schedule x\nparam = 4\n")] == ["E102"]


# --- the command --------------------------------------------------------------------------------------------------------

UNFORMATTED, FORMATTED = "schedule x\nranks  2\n", "schedule x\nranks 2\n"


def test_files_are_formatted_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unformatted, formatted_file = tmp_path / "unformatted.sched", tmp_path / "formatted.sched"
    unformatted.write_text(UNFORMATTED)
    formatted_file.write_text(FORMATTED)
    unformatted.chmod(0o640)
    before = formatted_file.stat().st_mtime_ns
    assert main(["fmt", "--check", str(unformatted), str(formatted_file)]) == 1
    assert capsys.readouterr().out == f"{unformatted} is not formatted\n"
    assert unformatted.read_text() == UNFORMATTED
    assert main(["fmt", str(unformatted), str(formatted_file)]) == 0
    assert capsys.readouterr().out == f"formatted {unformatted}\n"
    assert (unformatted.read_text(), formatted_file.stat().st_mtime_ns, unformatted.stat().st_mode & 0o777) == (
        FORMATTED,
        before,
        0o640,
    )
    assert main(["fmt", "--check", str(unformatted), str(formatted_file)]) == 0
    assert sorted(tmp_path.iterdir()) == [formatted_file, unformatted]


def test_line_ends_and_a_byte_order_mark_alone_are_no_reason_to_write_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.sched"
    for text, status in ((FORMATTED, 0), (UNFORMATTED, 1)):
        given = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
        path.write_bytes(given)
        assert main(["fmt", "--check", str(path)]) == status
        assert main(["fmt", str(path)]) == 0 and path.read_bytes() == (given if text == FORMATTED else FORMATTED.encode())


def test_a_check_of_formatted_files_needs_no_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.sched"
    path.write_text(FORMATTED)
    monkeypatch.setattr("sys.stdout", None)  # the shell closed it
    assert main(["fmt", "--check", str(path)]) == 0


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.sched").write_text(UNFORMATTED)
    link = tmp_path / "link.sched"
    link.symlink_to("real.sched")
    assert main(["fmt", str(link)]) == 0
    assert link.is_symlink() and (tmp_path / "real.sched").read_text() == FORMATTED


def test_a_dash_is_stdin_and_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # Stdin is read once, even if the dash is given twice.
    for options, out, status in (([], FORMATTED, 0), (["-"], FORMATTED, 0), (["--check"], "<stdin> is not formatted\n", 1)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(UNFORMATTED.encode())))
        assert main(["fmt", *options, "-"]) == status
        assert capsys.readouterr().out == out


def test_findings_and_statuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, unformatted = tmp_path / "wrong.sched", tmp_path / "unformatted.sched"
    wrong.write_text("schedule x\nparam = 4\n")
    unformatted.write_text(UNFORMATTED)
    assert main(["fmt", str(wrong), str(unformatted)]) == 1  # the other files are formatted anyway
    assert f"{wrong}:2:7" in capsys.readouterr().err
    assert (wrong.read_text(), unformatted.read_text()) == ("schedule x\nparam = 4\n", FORMATTED)
    assert main(["fmt", str(tmp_path / "none")]) == 2
    assert "E001" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["fmt"])
    assert stop.value.code == 2


def test_a_file_called_fmt_is_a_schedule_only_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fmt").write_text(find("1f1b").text)
    assert main(["./fmt", "-p", "D=2"]) == 0
    assert capsys.readouterr().out.startswith("chimera-program 1")
    assert main(["fmt", "fmt"]) == 0


def test_the_tokens_of_the_library_are_those_of_the_grammar() -> None:
    for name in names():
        text = find(name).text
        assert [t for t in TOKEN.findall(text) if t[0] != "#"] == [
            str(t) for t in parser().parse_interactive(text).iter_parse()
        ]
