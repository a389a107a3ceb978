"""text of a schedule -> the same text in its usual spelling: indentation, spaces around operators, empty lines.

What the author decides stays: which statements share a line, where a block is broken, comments, and wider gaps that put
things under each other. The tokens are laid out anew, never the tree, so nothing that the tree does not know is lost.
"""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import Source
from chimerac.compiler.format.layout import Writer
from chimerac.compiler.format.units import tokens_of, units_of
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.syntax.tokens import TOKEN


def format_schedule(source: Source) -> str:
    """Return the formatted text of a schedule. Raises ChimeraError with its syntax errors."""
    tree = parse(source)
    tokens = tokens_of(source.text, tree)
    writer = Writer()
    writer.items(list(units_of(iter(tokens))), 0)
    text = writer.text()
    for comment in (False, True):
        again = [m[0] for m in TOKEN.finditer(text) if m[0].startswith("#") == comment]
        assert again == [t.text for t in tokens if t.comment == comment], "formatting changed more than spaces"
    return text
