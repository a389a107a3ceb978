"""The parser that lark generates from grammar.lark, and the reserved words and tokens of the language.

lark needs 140 ms to generate the parser, and 7 ms to load the one that is saved in grammar.tables. The first line of
grammar.tables has the version of lark and the hash of the grammar. The rest is the output of Lark.save, a pickle. Loading this
pickle is safe: the file is part of this package like the code, contains plain values only
(tests/contract/test_grammar_tables.py), and is not loaded if its first line has another version or hash. tools/saved_parser.py
writes the file.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from functools import cache
from importlib import resources

import lark
from lark import Lark, Token

TABLES = "grammar.tables"
_HERE = resources.files("chimerac.compiler.syntax")


@cache
def parser() -> Lark:
    """Return the parser: loaded if it was saved for this grammar and this version of lark, else generated."""
    stored = _HERE.joinpath(TABLES)
    return (loaded(stored.read_bytes()) if stored.is_file() else None) or generated()


def generated() -> Lark:
    """Return the parser, generated from the grammar."""
    # The basic lexer: the contextual one reports wrong columns (lark 1.3.1).
    return Lark(_text(), parser="lalr", lexer="basic", propagate_positions=True)


def loaded(stored: bytes) -> Lark | None:
    """Return the parser that was saved, or None if it was saved for another grammar or by another version of lark."""
    file = io.BytesIO(stored)
    return Lark.load(file) if file.readline() == first_line() else None


@cache
def keywords() -> frozenset[str]:
    """Return the reserved words, which cannot be names."""
    return frozenset(t.pattern.value for t in parser().terminals if t.pattern.value.isidentifier())


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a text that parses, including comments."""
    return (t for t in parser().lex(text, dont_ignore=True) if t.type != "WS")


def _text() -> str:
    return _HERE.joinpath("grammar.lark").read_text(encoding="utf-8")


def first_line() -> bytes:
    """Return the first line of grammar.tables: the version of lark and the hash of the grammar."""
    return f"lark {lark.__version__}, grammar {hashlib.sha256(_text().encode()).hexdigest()}\n".encode()
