"""The configuration of Sphinx for the documentation site. tools/site.py copies it as conf.py beside the pages."""

from __future__ import annotations

import re
from typing import Any

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, Text, Whitespace

from chimerac.compiler.syntax.grammar import keywords

project = "chimerac"
author = "the authors of chimerac"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "chimerac"
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
templates_path: list[str] = []

myst_heading_anchors = 4  # headings down to this level get the anchors that a forge gives them
myst_fence_as_directive = ["mermaid"]
mermaid_version = "11.12.0"

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
napoleon_use_ivar = True  # attributes as a list: otherwise Sphinx would find each of them described twice


_SPECIAL = re.compile(r"([*|\\]|\w_(?=\W|$))")  # what reStructuredText would interpret


class SchedLexer(RegexLexer):
    """Splits texts in the schedule language into tokens, which Sphinx colours."""

    name = "sched"
    aliases = ("sched",)
    tokens = {  # noqa: RUF012
        "root": [
            (r"#[^\n]*", Comment.Single),
            (rf"\b(?:{'|'.join(sorted(keywords()))})\b", Keyword),
            (r"\b(?:min|max)\b", Name.Builtin),
            (r"\b[FBIWR]\b", Name.Function),
            (r"[A-Za-z_][A-Za-z0-9_]*", Name),
            (r"[0-9]+", Number.Integer),
            (r"\s+", Whitespace),
            (r"[-+*/%=<>!&.]+", Operator),
            (r".", Text),
        ]
    }


def as_rst(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Change a docstring, which is plain text with `code` and indented examples in it, to reStructuredText.

    In the sections Args and Attributes only code and special characters change: sphinx.ext.napoleon reads these sections.

    Args:
        lines: of the docstring; they are changed in place.

    Sphinx gives the other arguments too.
    """
    changed: list[str] = []
    is_in_section = False
    for line in lines:
        if line and not line.startswith(" "):
            is_in_section = line in ("Args:", "Attributes:")
        is_example = line.startswith("    ") and not is_in_section
        if is_example and changed and not changed[-1].strip():
            before = next((earlier for earlier in reversed(changed) if earlier.strip()), "")
            # `::` begins a literal block. An example may have blank lines inside.
            changed += [] if before.startswith("    ") else ["::", ""]
        # The parts in backticks are kept, because the regular expression has them in a group.
        parts = re.split(r"(``?[^`]+``?)", line)
        as_text = (f"``{part.strip('`')}``" if part.startswith("`") else _SPECIAL.sub(_escaped, part) for part in parts)
        changed.append(line if is_example else "".join(as_text))
    lines[:] = changed


def _escaped(special: re.Match[str]) -> str:
    """Return a match of _SPECIAL with a backslash before its special character, which is the last one."""
    text = special[0]
    return f"{text[:-1]}\\_" if text.endswith("_") else f"\\{text}"


def setup(app: Any) -> None:
    """Register the colours and the change of docstrings; called by Sphinx."""
    app.add_lexer("sched", SchedLexer)
    app.connect("autodoc-process-docstring", as_rst, priority=400)  # before napoleon
