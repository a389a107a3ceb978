"""Design rule 1, a schedule is data: no identifier and no string of chimera_ir, compiler and interpreter names a scheme.

Comments and docstrings may name schemes, and so may the texts for users that `words` leaves out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chimerac.compiler.library import find, names
from chimerac.compiler.syntax.parse import parse
from tools import ROOT

FILES = [p for package in ("chimera_ir", "compiler", "interpreter") for p in sorted((ROOT / package).rglob("*.py"))]

SCHEMES = (
    "gpipe|1f1b|one_?f_?one_?b|pipedream|dapple|chimera|interleaved|gems|hanayo|bitpipe|zero_?bubble|zb_?[hv]\\d?"
    "|dualpipe|bidirectional|looped|breadth_?first|forward_?doubling|backward_?halving"
)
# `chimera` may stand for this project, in the names of its formats, packages, environment variables and exception. It may also
# be in the path schedules/chimera.sched, which is a default and an example.
FORMATS = (
    "data", "experiment-run", "log", "model", "order-certificate", "partition", "preset", "profile", "program", "search-costs",
    "timeline",
)  # fmt: skip
ALLOWED = (
    *(rf"\bchimera-{name}\b" for name in FORMATS),
    r"\bchimera (program|model|partition|profile|timeline)\b",
    r"\bchimera_ir\b",
    r"\bchimerac(_|\b)",
    r"\bCHIMERAC_",
    r"\bChimeraError\b",
    r"\bschedules/chimera\.sched\b",
)


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of identifiers and strings, except docstrings, examples and some texts for users."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] in (["EXAMPLES"], ["DESCRIPTION"]):
            prose |= {id(child) for child in ast.walk(node)}  # the help of the command
        # Texts for users: parser.error, a paragraph of the tour, and the help of an option or a finding.
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".error", "guide.say")):
            prose |= {id(child) for child in ast.walk(node)}
        if isinstance(node, ast.keyword) and node.arg == "help":
            prose |= {id(child) for child in ast.walk(node)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Constant(value=str(text)) if id(node) not in prose:
                yield line, text
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield line, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield line, name
            case ast.keyword(arg=str(name)):
                yield line, name
            case ast.ImportFrom(module=str(name)):
                yield line, name


def scheme_in(text: str) -> str:
    """Return the first name of a scheme in a text without the allowed names, or an empty text."""
    found = re.search(SCHEMES, re.sub("|".join(ALLOWED), "", text), re.IGNORECASE)
    return found[0] if found else ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_code_of_a_file_names_no_scheme(path: Path) -> None:
    assert [(line, text) for line, text in words(path) if scheme_in(text)] == []


def test_every_allowed_name_is_used() -> None:
    texts = [text for path in FILES for _, text in words(path)]
    assert [pattern for pattern in ALLOWED if not any(re.search(pattern, text) for text in texts)] == []


def test_every_schedule_of_the_library_is_recognized_and_names_of_this_project_are_not() -> None:
    for text in ("chimera", "is_1f1b", "ZBH1", "dualpipe", 'if schedule == "gpipe"', "def forward_doubling", "chimera.sched"):
        assert scheme_in(text)
    for text in ("chimera-program", "ChimeraError", "chimerac", "chimerac.chimera_ir.program"):
        assert not scheme_in(text)
    # Every schedule of the library is recognized, by the name of its file and by the name in its text.
    for name in names():
        assert scheme_in(name)
        assert scheme_in(parse(find(name)).name.name)
