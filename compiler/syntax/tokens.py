"""The tokens of any text, including comments, without a parser: `parse` counts them, and the language server finds words."""

from __future__ import annotations

import re

TOKEN = re.compile(r"#[^\n]*|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|\.\.|//|[=!<>]=|\S")
