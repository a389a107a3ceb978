"""The tokens of a schedule's text, including comments: the parser counts them, and the formatter lays them out."""

from __future__ import annotations

import re

TOKEN = re.compile(r"#[^\n]*|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|\.\.|//|[=!<>]=|\S")
