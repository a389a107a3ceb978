"""The tokens of a schedule's text, comments among them: what the parser counts and the formatter places."""

from __future__ import annotations

import re

TOKEN = re.compile(r"#[^\n]*|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|\.\.|//|[=!<>]=|\S")
