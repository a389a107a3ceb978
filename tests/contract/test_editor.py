"""The highlighting of the editor fits the language: every word and sign has the scope that decides its colour."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from chimerac.compiler.library import find, names
from chimerac.compiler.resolve.expressions import FUNCTIONS
from chimerac.compiler.syntax.grammar import keywords
from chimerac.compiler.syntax.kinds import KINDS
from tools import ROOT

EDITOR = ROOT / "editor"
# What an editor calls a grammar: patterns, each with the scope of the texts that it matches.
HIGHLIGHTING = json.loads((EDITOR / "syntaxes/sched.tmLanguage.json").read_text(encoding="utf-8"))
PATTERNS = [(re.compile(p["match"]), p) for p in HIGHLIGHTING["patterns"]]


def scopes(line: str) -> Iterator[tuple[str, str]]:
    """Yield each piece of a line with its scope, as (text, scope).

    As in an editor, the earliest match decides, and of several at one place that of the first pattern. A piece that no
    pattern matches has the scope ''.
    """
    position = 0
    while position < len(line):
        found = [(m.start(), k, m) for k, (pattern, _) in enumerate(PATTERNS) if (m := pattern.search(line, position))]
        start, k, m = min(found, default=(len(line), 0, None), key=lambda x: x[:2])
        if line[position:start].strip():
            yield line[position:start].strip(), ""
        if m is None:
            return
        assert m.end() > start, "a pattern matches the empty string: the search would not advance"
        captures = PATTERNS[k][1].get("captures")
        yield from [(m[int(g)], c["name"]) for g, c in captures.items()] if captures else [(m[0], PATTERNS[k][1]["name"])]
        position = m.end()


def scope(text: str) -> str:
    """Return the scope of a text that is matched as a whole."""
    ((matched, result),) = scopes(text)
    assert matched == text
    return result


@pytest.mark.parametrize("word", sorted(keywords()))
def test_every_reserved_word_is_a_keyword(word: str) -> None:
    assert scope(word).startswith("keyword.")


def test_no_other_word_is_a_keyword() -> None:
    # {2,}: without the b of \b in the patterns.
    listed = {w for _, p in PATTERNS for w in re.findall(r"[a-z_]{2,}", p["match"]) if p.get("name", "").startswith("keyword")}
    assert listed == set(keywords())
    for name in ("N", "unit", "micro_batch", "ranked", "F0", "then_", "minimum"):
        assert scope(name) == "variable.other.sched"


def test_every_symbol_of_the_grammar_is_coloured() -> None:
    text = (ROOT / "compiler/syntax/grammar.lark").read_text(encoding="utf-8")
    signs = {s for s in re.findall(r'"([^"\s]+)"', text) if not s[0].isalpha()}
    assert {"{", "..", "==", "//", "/", "&", ","} <= signs
    for sign in signs:
        assert scope(sign).startswith(("keyword.operator.", "punctuation."))


def test_tasks_functions_definitions_and_comments_have_their_scopes() -> None:
    for kind in (*KINDS, "hop"):
        assert scope(kind) == "storage.type.task.sched"
    for function in FUNCTIONS:
        assert dict(scopes(f"{function}(1)"))[function] == "support.function.sched"
    assert dict(scopes("pipe down[i in 0 .. 1]"))["down"] == "entity.name.sched"
    assert list(scopes("x # let y"))[-1] == ("# let y", "comment.line.number-sign.sched")


@pytest.mark.parametrize("name", names())
def test_nothing_of_the_library_is_left_uncoloured(name: str) -> None:
    for line in find(name).text.splitlines():
        found = list(scopes(line))
        assert all(scope_of_text for _, scope_of_text in found), found
        assert "".join(text for text, _ in found).replace(" ", "") == line.replace(" ", "")


def test_the_package_names_files_that_exist() -> None:
    package = json.loads((EDITOR / "package.json").read_text(encoding="utf-8"))
    (language,), (grammar,) = package["contributes"]["languages"], package["contributes"]["grammars"]
    assert grammar["language"] == language["id"] and grammar["scopeName"] == HIGHLIGHTING["scopeName"]
    for path in (language["configuration"], grammar["path"]):
        assert json.loads((EDITOR / path).read_text(encoding="utf-8"))
