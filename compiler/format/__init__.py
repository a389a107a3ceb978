"""text of a schedule -> the same text in the standard layout: indentation, spaces around operators, empty lines.

Three things stay as the author wrote them, unless a line would become too long: which statements share a line, whether a block
is on one line, and wider gaps that align columns. Comments are kept. The formatter works on tokens, because the syntax tree has
no comments. The tree only says where statements, clauses, rules and actions begin.
"""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import Source
from chimerac.compiler.format.layout import Writer
from chimerac.compiler.format.units import tokens_of, units_of
from chimerac.compiler.pipeline import parse_source
from chimerac.compiler.syntax import grammar


def format_schedule(source: Source) -> str:
    """Return the formatted text of a schedule. Raises ChimeraError with the findings of `parse_source`."""
    tree = parse_source(source)
    tokens = tokens_of(source.text, tree)
    writer = Writer()
    writer.items(list(units_of(iter(tokens))), 0)
    text = writer.text()
    written = [t.rstrip() for t in grammar.tokens(text)]
    assert written == [t.text for t in tokens], "formatting changed more than white space"
    return text
