"""The stored tables of the parser are up to date (tools/figures.py writes them), and parse like the grammar."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import lark
import pytest

from chimerac.compiler.syntax import tables
from tools.figures import GRAMMAR, SCHEDULES, TABLES

TEXT = GRAMMAR.read_text(encoding="utf-8")
STORED = TABLES.read_text(encoding="utf-8")
WRONG = ["schedule x param", "schedule x ranks (1 ? 2)", "schedule x pipe p { stage s on rank 1 }", "schedule let ranks 1"]


def test_tables_are_those_of_the_grammar() -> None:
    """Also in a process with another hash seed, where sets of lark have another order."""
    code = f"import sys\nfrom compiler.syntax.tables import dump\nsys.stdout.write(dump(open({str(GRAMMAR)!r}).read()))"
    fresh = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert fresh.stdout == STORED, "refresh with: make figures"


def test_a_parse_from_the_tables_equals_one_from_the_grammar() -> None:
    loaded, built = tables.load(STORED, TEXT), tables.build(TEXT)
    assert loaded is not None
    for path in SCHEDULES:
        text = path.read_text(encoding="utf-8")
        one, other = loaded.parse(text), built.parse(text)
        assert one == other and one.pretty() == other.pretty()
        assert [vars(t.meta) for t in one.iter_subtrees()] == [vars(t.meta) for t in other.iter_subtrees()]
    for text in WRONG:
        errors = []
        for parser in (loaded, built):
            with pytest.raises(lark.UnexpectedInput) as error:
                parser.parse(text)
            errors.append((error.value.pos_in_stream, getattr(error.value, "expected", None)))
        assert errors[0] == errors[1]


def test_the_grammar_leaves_nothing_to_choose(caplog: pytest.LogCaptureFixture) -> None:
    """The grammar has no conflicts. lark resolves shift-reduce conflicts by itself, but logs them."""
    lark.logger.setLevel(logging.DEBUG)
    with caplog.at_level(logging.DEBUG, logger=lark.logger.name):
        for grammar, has_conflict in ((TEXT, False), ('start: e\ne: "if" e | "if" e "else" e | "x"\n', True)):
            caplog.clear()
            lark.logger.addHandler(caplog.handler)
            lark.Lark(grammar, parser="lalr", lexer="basic", debug=True)
            lark.logger.removeHandler(caplog.handler)
            assert ("conflict" in caplog.text.lower()) == has_conflict, caplog.text
    lark.logger.setLevel(logging.CRITICAL)


def test_tables_of_another_grammar_or_lark_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tables.load(STORED, TEXT + "\n") is None
    assert tables.load("not JSON", TEXT) is None
    monkeypatch.setattr(lark, "__version__", "0.0")
    assert tables.load(STORED, TEXT) is None


def test_the_parser_is_not_built_where_tables_fit() -> None:
    """In a fresh process, reading a schedule does not run lark's analysis of the grammar."""
    code = """
from chimerac.compiler.syntax import parse, tables
tables.build = None
parse.keywords()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(TABLES).parent)


def test_tables_are_plain_json() -> None:
    shared = {"terminals", "tokens", "symbols", "options", "followers"}
    assert set(json.loads(STORED)) == {"made of", "data", "rules", "states"} | shared
