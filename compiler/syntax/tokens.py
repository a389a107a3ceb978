"""The tokens of any text, including comments, without a parser. parse.py and the language server find them with TOKEN."""

from __future__ import annotations

import re

# A comment, a word, a number, a symbol of two characters, or any other character except white space.
TOKEN = re.compile(r"#[^\n]*|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|\.\.|//|[=!<>]=|\S")
