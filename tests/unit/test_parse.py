"""Parsing a text to a syntax tree: printing it again, spans, all errors in one run, their help, and limits of size."""

from __future__ import annotations

import pytest

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import Diagnostic, Source
from chimerac.compiler.diagnose.texts import MAX_SYNTAX_ERRORS
from chimerac.compiler.library import find, names
from chimerac.compiler.pipeline import parse_source as parse
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.printer import expression, print_schedule
from chimerac.compiler.syntax.walk import names_in
from tests.helpers import findings_of_call
from tests.helpers_text import text


def read(source: str) -> n.Schedule:
    return parse(Source("a.sched", source))


def errors(source: str) -> list[Diagnostic]:
    return findings_of_call(read, source)


@pytest.mark.parametrize("name", names())
def test_a_printed_schedule_of_the_library_parses_to_the_same_tree(name: str) -> None:
    tree = parse(find(name))
    assert parse(Source("printed", print_schedule(tree))) == tree


def test_spans_are_those_of_the_text() -> None:
    tree = read("schedule x\n  param D = 4 # four\n\n  let\ty = D //\n    2\n")
    param, let = tree.statements
    assert isinstance(param, n.Param) and isinstance(let, n.Let)
    assert str(param.span) == "a.sched:2:3"
    assert (param.name.span.column, param.name.span.end_column) == (9, 10)
    assert (let.value.span.line, let.value.span.column) == (4, 11)
    assert (let.value.span.end_line, let.value.span.end_column) == (5, 6)


def test_trees_are_equal_whatever_the_spacing() -> None:
    assert read("schedule x param D=4") == read("schedule x\n# words\nparam   D\n= 4\r\n")
    assert read("schedule x param D = 4") != read("schedule x param D = 5")


def test_statements_need_no_newline() -> None:
    assert read(text().replace("\n", " ")) == read(text())


def test_every_statement_with_an_error_is_reported() -> None:
    broken = text(param="param D = 2 +\nparam N = * 3", ranks="ranks )", rule1="F(s m) at s", rule2="B(s, m) at 2 $ 3")
    assert [(d.code, d.span.line if d.span else 0) for d in errors(broken)] == [
        ("E102", 3),  # of the statement on line 2, whose missing operand is noticed where the next statement begins
        ("E102", 3),
        ("E102", 4),
        ("E102", 9),
        ("E101", 10),
    ]


def test_the_number_of_errors_is_limited() -> None:
    assert len(errors("schedule x\n" + "param D = = 4\n" * 50)) == MAX_SYNTAX_ERRORS


def test_one_mistake_is_one_error() -> None:
    assert len(errors(text(ranks="ranks"))) == 1
    assert len(errors(text(extra="require 1 <= N <= 3"))) == 1
    assert len(errors(text(end=""))) == 1


@pytest.mark.parametrize("source", ["", "   \n", "# nothing\n", "schedule", "schedule schedule", "pipe", "}", "schedule x }"])
def test_a_text_that_is_no_schedule_is_one_finding(source: str) -> None:
    [d] = errors(source)
    assert d.code in ("E101", "E102") and d.span


@pytest.mark.parametrize(
    "source",
    [
        "schedule x\x00",
        "schedule x param é = 1",
        "schedule x param D = ４",
        "\ufeffschedule x",
        # characters that Python takes for digits or letters and this language does not, next to valid ones
        "schedule ²x",
        "schedule x param ²y = 1",
        "schedule x param D = ４(2)",
        "schedule x param D = 2٣x",
        "schedule x param D = 2é",
    ],
)
def test_an_unexpected_character_is_a_finding(source: str) -> None:
    assert errors(source)[0].code == "E101"


def test_a_number_before_a_name_or_a_parenthesis_gets_help() -> None:
    for source, message, help in (
        ("schedule x param D = 2y", "two factors without an operator between them", "write '2*y' instead of '2y'"),
        ("schedule x param D = 2(y)", "two factors without an operator between them", "write '2*(' instead of '2('"),
        ("schedule x param 2y = 1", "a name begins with a letter or _", "write 'param_2y' instead of '2y'"),
        ("schedule x param 2(", "a name begins with a letter or _", "write 'param_2' instead of '2'"),
    ):
        [d] = errors(source)
        assert (d.code, d.message, d.help) == ("E102", message, help)


def test_sizes_have_limits() -> None:
    assert errors("schedule x\n" + "#" * limits.TEXT)[0].code == "E105"
    assert errors("schedule x let y = " + "(" * 5000 + "1" + ")" * 5000)[0].code == "E104"
    read("schedule x let y = " + "(" * 90 + "1" + ")" * 90)
    deep = limits.NESTING + 1
    assert errors("schedule x let y = " + "1 + (" * deep + "1" + ")" * deep)[0].code == "E104"
    assert errors("schedule x let y = " + "if 1 == 1 then 2 else " * deep + "1")[0].code == "E104"
    assert errors("schedule x let y = " + "-" * 5000 + "1")[0].code == "E104"
    assert errors(f"schedule x let y = {limits.MAGNITUDE + 1}")[0].code == "E103"
    read(f"schedule x let y = {limits.MAGNITUDE}")
    assert errors("schedule x " + "let y = 1 " * (limits.TOKENS // 4))[0].code == "E105"
    assert errors("schedule x let " + "y" * (limits.NAME + 1) + " = 1")[0].code == "E105"
    assert errors("schedule x " + "".join(f"let y{k} = 1 " for k in range(limits.NAMES + 1)))[0].code == "E105"


@pytest.mark.parametrize("sign", ["+", "*", "and", "=="])
def test_a_long_chain_of_operators_parses(sign: str) -> None:
    """The tree of a chain is as deep as the chain is long. So functions visit its terms in a loop, without recursion."""
    terms = 2 if sign == "==" else 20_000  # comparisons cannot be chained
    chain = f" {sign} ".join(f"(a{k % 7})" for k in range(terms))
    tree = read(f"schedule x let y = {chain}")
    let = tree.statements[0]
    assert isinstance(let, n.Let)
    assert expression(let.value) == chain.replace("(", "").replace(")", "")
    assert names_in(let.value) == [f"a{k}" for k in range(min(7, terms))]


@pytest.mark.parametrize(
    ("changes", "help"),
    [
        ({"pipe": "pipe main: { stage s on rank s   micro_batches N }"}, "remove ':'"),
        ({"rule1": "F(s, m) at 2^m"}, "there are no powers; write a product, such as m*m"),
        ({"rule1": "F(s, m) at 2**m"}, "there are no powers; write a product, such as m*m"),
        ({"rule1": "for s in 0 .. 1 { F(s, m) at s }"}, "formulas need no loop: F(s, m) at ..."),
    ],
)
def test_syntax_of_other_languages_gets_help(changes: dict[str, str], help: str) -> None:
    assert errors(text(**changes))[0].help.startswith(help)  # test_slips_text.py has many more


def test_no_help_for_a_slip_where_there_is_none() -> None:
    assert "'='" not in errors(text(param="param = 2"))[0].help  # the name is missing, and the '=' is right
    assert read(text(order="order listing for rank r {", rule1="repeat i in 0 .. 3 { F & B }", rule2=""))


@pytest.mark.parametrize("digit", ["²", "٣", "½"])
def test_digits_other_than_0_to_9_have_no_meaning(digit: str) -> None:
    """Neither in a name, nor in the place of one, nor between a number and a parenthesis. The finding is about the digit."""
    for broken in (text(param=f"param D{digit}s = 2"), text(param=f"param {digit} = 2"), text(param=f"param D = 2{digit}(3)")):
        (found,) = errors(broken)
        assert found.code == "E101" and digit in found.message
