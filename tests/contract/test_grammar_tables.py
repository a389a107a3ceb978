"""The saved parser (`make figures` writes it) belongs to the grammar, has only plain values, and parses like a new one."""

from __future__ import annotations

import logging
import pickletools
import subprocess
import sys

import lark
import pytest

from chimerac.compiler.syntax import grammar
from tools.figures import SCHEDULES
from tools.saved_parser import PARSER

STORED = PARSER.read_bytes()
FIRST_LINE, _, PICKLE = STORED.partition(b"\n")
# Texts that do not parse.
WRONG = ["schedule x param", "schedule x ranks (1 ? 2)", "schedule x pipe p { stage s on rank 1 }", "schedule let ranks 1"]


def test_a_parse_by_the_saved_parser_equals_one_by_a_new_parser() -> None:
    loaded, generated = grammar.loaded(STORED), grammar.generated()
    assert loaded is not None, "refresh with: make figures"
    for path in SCHEDULES:
        text = path.read_text(encoding="utf-8")
        saved_tree, new_tree = loaded.parse(text), generated.parse(text)
        assert saved_tree == new_tree and saved_tree.pretty() == new_tree.pretty()
        assert [vars(t.meta) for t in saved_tree.iter_subtrees()] == [vars(t.meta) for t in new_tree.iter_subtrees()]
    for text in WRONG:
        errors = []
        for parser in (loaded, generated):
            with pytest.raises(lark.UnexpectedInput) as error:
                parser.parse(text)
            errors.append((error.value.pos_in_stream, getattr(error.value, "expected", None)))
        assert errors[0] == errors[1]


def test_the_grammar_has_no_conflict(caplog: pytest.LogCaptureFixture) -> None:
    """lark resolves shift-reduce conflicts by itself, but logs them. The second grammar has such a conflict."""
    text = PARSER.with_name("grammar.lark").read_text(encoding="utf-8")
    with caplog.at_level(logging.DEBUG, logger=lark.logger.name):
        for rules, has_conflict in ((text, False), ('start: e\ne: "if" e | "if" e "else" e | "x"\n', True)):
            caplog.clear()
            lark.Lark(rules, parser="lalr", lexer="basic", debug=True)
            assert ("conflict" in caplog.text.lower()) == has_conflict, caplog.text


def test_a_parser_of_another_grammar_or_lark_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first line is read, not the pickle after it, which may run any code. `harmful` would call os.system."""
    harmful = b"cos\nsystem\n(S'false'\ntR."
    for stored in (b"", b"\n" + PICKLE, harmful, FIRST_LINE + b"0\n" + harmful, FIRST_LINE):
        assert grammar.loaded(stored) is None
    monkeypatch.setattr(lark, "__version__", "0.0")
    assert grammar.loaded(STORED) is None


def test_a_parser_is_generated_if_the_saved_one_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lark, "__version__", "0.0")
    text = SCHEDULES[0].read_text(encoding="utf-8")
    assert grammar.parser.__wrapped__().parse(text) == grammar.parser().parse(text)  # __wrapped__: without the cache


def test_the_parser_is_not_generated_if_the_saved_one_fits() -> None:
    """In a fresh process, in which a call of `generated` would fail."""
    code = "from chimerac.compiler.syntax import grammar\ngrammar.generated = None\ngrammar.keywords()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_saved_parser_holds_plain_values_only() -> None:
    """The pickle only fills lists, tuples and dicts. It has no operation that imports or calls something."""
    used = {operation.name for operation, _, _ in pickletools.genops(PICKLE)}
    plain = {"PROTO", "FRAME", "MEMOIZE", "BINGET", "LONG_BINGET", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE"}
    plain |= {"BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINUNICODE", "BINUNICODE"}
    plain |= {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    plain |= {"APPEND", "APPENDS", "SETITEM", "SETITEMS"}
    assert used <= plain
